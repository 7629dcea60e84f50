// The verbs transport on the scripted NIC: each transport of a test is a host with two devices, all
// in one fabric; WEFT_TEST_WIRE=rc says over which queue pairs multipath goes. With
// WEFT_TEST_RDMA=rxe0,rxe1 on real devices instead, one for each rank in turn, with the settings of
// the environment (tools/dev test roce).
#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/pair_transport.h"
#include "net/verbs/verbs_transport.h"
#include "tests/net/harness.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {

absl::StatusOr<std::unique_ptr<Transport>> MakeTestTransport(TransportKind kind,
                                                             const TransportOptions& options) {
  TransportOptions with_rails = options;
  const char* real = std::getenv("WEFT_TEST_RDMA");
  if (real != nullptr) {
    absl::Status set = with_rails.settings.SetFromEnvironment(/*strict=*/false);
    WEFT_CHECK(set.ok(), set);
  }
  if (kind == TransportKind::kMultipath) {
    const char* wire = std::getenv("WEFT_TEST_WIRE");
    wire = wire == nullptr ? "uc" : wire;
    WEFT_CHECK(with_rails.settings.Set("multipath.wire", wire, "test").ok(), wire);
  }
  if (real != nullptr) {
    const std::vector<std::string> names = absl::StrSplit(real, ',');
    const std::string& own = names[static_cast<size_t>(options.self.value()) % names.size()];
    WEFT_CHECK(with_rails.settings.Set("verbs.devices", absl::StrCat("=", own), "test").ok(), own);
    return CreateTransport(kind, with_rails);
  }
  SetLogLevel(LogLevel::kWarn);
  static auto* fabric = new ScriptedFabric();  // transports of other threads may outlive main
  static std::atomic<uint32_t> next{0};
  const uint32_t host = next++;
  std::vector<ScriptedDeviceOptions> devices(2);
  for (uint32_t i = 0; i < devices.size(); ++i) {
    devices[i].name = absl::StrCat("scripted", host, "_", i);
    devices[i].address = 0x0A000000 + host * 2 + i;
  }
  WEFT_CHECK(with_rails.settings.Set("verbs.devices", "scripted", "test").ok(), "");
  std::unique_ptr<Nic> nic = fabric->MakeNic(devices);
  if (kind == TransportKind::kVerbs) return VerbsTransport::Create(with_rails, std::move(nic));
  return multipath::PairTransport::Create(with_rails, std::move(nic));
}

}  // namespace weft::net
