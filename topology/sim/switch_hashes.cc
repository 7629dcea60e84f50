#include "topology/sim/switch_hashes.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "topology/ecmp/roce.h"
#include "topology/sim/path_choice.h"

namespace weft::topology {
namespace {

constexpr absl::string_view kPerTier = "per-tier";
constexpr absl::string_view kResilient = ":resilient";

}  // namespace

std::string SwitchHashes::Names() {
  return "per-tier, linux, crc16-ccitt, crc16-arc, crc32, crc32c, xor16 or mix; with ':resilient' "
         "after it, groups are resilient";
}

absl::StatusOr<SwitchHashes> SwitchHashes::Create(const Fabric& fabric, absl::string_view name,
                                                  uint64_t seed) {
  bool is_resilient = absl::ConsumeSuffix(&name, kResilient);
  auto first = static_cast<uint32_t>(seed);
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, FabricHashes::Create(fabric, first));
  SwitchHashOptions options;
  if (name != kPerTier) {
    WEFT_ASSIGN_OR_RETURN(options.function, ParseHashFunction(name));
    if (options.function == HashFunction::kLinux) options.select = HashSelect::kThreshold;
  }
  for (int i = 0; i < fabric.nodes(); ++i) {
    uint32_t own = first + static_cast<uint32_t>(i);
    if (name == kPerTier) options = PerTierHash(fabric.node(NodeId(i)).tier, own);
    options.seed = own == 0 ? ~0u : own;  // Linux takes 0 for "at random"
    if (is_resilient) options.select = HashSelect::kResilient;
    WEFT_ASSIGN_OR_RETURN(SwitchHash hash, SwitchHash::Create(options));
    hashes.SetHash(NodeId(i), hash);
  }
  return SwitchHashes(std::move(hashes), seed);
}

size_t SwitchHashes::Choose(NodeId at, const Flow& flow, absl::Span<const LinkId> next) const {
  uint16_t port = flow.source_port;
  if (port == 0) {
    port = static_cast<uint16_t>(kRocePortFirst |
                                 (FlowHash(seed_, flow.source, flow.target, 0) & 0x3FFF));
  }
  return hashes_.Choose(
      at, hashes_.Tuple(flow.source, flow.target, port, kRoceTargetPort, kProtocolUdp), next);
}

}  // namespace weft::topology
