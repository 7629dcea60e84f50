// The suite of stores over c10d's TCPStore: what ours promises beyond c10d's semantics aside.
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "collectives/c10d/store.h"
#include "tests/collectives/store/store_conformance.h"

namespace weft::collectives {
namespace {

class TcpStores final : public ConformingStores {
 public:
  TcpStores() {
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    server_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  absl::StatusOr<std::unique_ptr<Store>> Connect(int) override {
    c10d::TCPStoreOptions options;
    options.port = server_->getPort();
    options.waitWorkers = false;
    return std::make_unique<C10dStoreAdapter>(
        c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
  }

  StorePromises promises() const override {
    return {/*acknowledges=*/false, /*checks=*/false, /*names=*/false,
            /*watches=*/false};
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> server_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformanceTest,
                         testing::Values(ConformingKind{
                             "Tcp",
                             [](std::string*) -> std::unique_ptr<ConformingStores> {
                               return std::make_unique<TcpStores>();
                             }}),
                         NameOfKind);

}  // namespace
}  // namespace weft::collectives
