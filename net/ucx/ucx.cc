#include "net/ucx/ucx.h"

#include <cstdlib>

#include "net/transport_module.h"

namespace weft::net {
namespace {

constexpr char kHint[] = "It is built where libucx-dev is installed, and needs libucx0 to load";

absl::StatusOr<TransportEntry> Load() {
  // UCX reads these once, when it is loaded. Its warnings would go to stdout, where programs of
  // ours write what other programs read; and a crash is the program's own matter.
  setenv("UCX_LOG_FILE", "stderr", 0);
  setenv("UCX_HANDLE_ERRORS", "none", 0);
  return LoadTransport("libweft-ucx.so", "weft_ucx_transport_1", kHint);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateUcxTransport(const TransportOptions& options) {
  static const absl::StatusOr<TransportEntry> entry = Load();
  return MakeTransport(entry, "UCX", options);
}

}  // namespace weft::net
