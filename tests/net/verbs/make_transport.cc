// The verbs transport on the scripted NIC: each transport of a test is a host with two devices, all
// in one fabric. With WEFT_TEST_RDMA=1 on the devices that there are instead (tools/dev test roce).
#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/verbs_transport.h"
#include "tests/net/harness.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {

absl::StatusOr<std::unique_ptr<Transport>> MakeTestTransport(TransportKind kind,
                                                             const TransportOptions& options) {
  if (std::getenv("WEFT_TEST_RDMA") != nullptr) return CreateTransport(kind, options);
  spdlog::set_level(spdlog::level::warn);
  static auto* fabric = new ScriptedFabric();  // transports of other threads may outlive main
  static std::atomic<uint32_t> next{0};
  const uint32_t host = next++;
  std::vector<ScriptedDeviceOptions> devices(2);
  for (uint32_t i = 0; i < devices.size(); ++i) {
    devices[i].name = absl::StrCat("scripted", host, "_", i);
    devices[i].address = 0x0A000000 + host * 2 + i;
  }
  TransportOptions with_rails = options;
  WEFT_CHECK(with_rails.settings.Set("verbs.devices", "scripted", "test").ok(), "");
  return VerbsTransport::Create(with_rails, fabric->MakeNic(std::move(devices)));
}

}  // namespace weft::net
