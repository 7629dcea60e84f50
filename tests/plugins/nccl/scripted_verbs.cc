// A libweft-verbs.so whose devices are scripted: what the plugin finds beside it in tests. All that
// loads this library in one process is one host with two devices of 100 Gbit/s,
// "scripted0" and "scripted1"; between processes there is no way.
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "net/verbs/ports.h"
#include "net/verbs/verbs.h"
#include "net/verbs/verbs_transport.h"
#include "tests/net/verbs/scripted_nic.h"

namespace weft::net {
namespace {

const std::vector<std::string>& Names() {
  static const auto* names = new std::vector<std::string>{"scripted0", "scripted1"};
  return *names;
}

ScriptedFabric& Fabric() {
  static ScriptedFabric* fabric = [] {
    auto* out = new ScriptedFabric();
    std::vector<ScriptedDeviceOptions> devices(Names().size());
    for (uint32_t i = 0; i < devices.size(); ++i) {
      devices[i].name = Names()[i];
      devices[i].dma_bufs = std::getenv("SCRIPTED_NIC_WITHOUT_DMA_BUFS") == nullptr;
      // 10.i.x.y, other than in another process, whose queue pairs have the same numbers.
      devices[i].address = 0x0A000000 + (i << 16) + (static_cast<uint32_t>(getpid()) & 0xFFFF);
    }
    out->MakeNic(devices);
    return out;
  }();
  return *fabric;
}

}  // namespace

#define WEFT_ENTRY extern "C" __attribute__((visibility("default"))) void

WEFT_ENTRY weft_verbs_transport_1(const TransportOptions& options,
                                  absl::StatusOr<std::unique_ptr<Transport>>* out) {
  *out = VerbsTransport::Create(options, Fabric().ReopenNic(Names()));
}

WEFT_ENTRY weft_verbs_ports_1(const Settings& settings,
                              absl::StatusOr<std::vector<VerbsPort>>* out) {
  *out = ListPorts(*Fabric().ReopenNic(Names()), settings);
}

// For tests, which find it by name.
WEFT_ENTRY weft_scripted_fabric(ScriptedFabric** out) { *out = &Fabric(); }

}  // namespace weft::net
