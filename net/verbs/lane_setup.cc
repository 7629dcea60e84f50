#include "net/verbs/lane_setup.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/random.h"
#include "base/status.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

constexpr uint32_t kPsnMask = (1u << 24) - 1;
constexpr uint32_t kMtuLeast = 256, kMtuMost = 4096;  // of InfiniBand

uint64_t Mix(uint64_t token, int lane, uint32_t epoch) {
  uint64_t state = token + static_cast<uint64_t>(lane) * kVerbsLanesMax + (uint64_t{epoch} << 32);
  return SplitMix64(state);
}

}  // namespace

absl::Status LaneSetup::SetPorts(absl::Span<const uint16_t> ports) {
  for (uint16_t port : ports) {
    if (port >= topology::kRocePortFirst) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("verbs.source_ports gives port ", port, " for rank ", peer_, "; RoCE has ",
                     topology::kRocePortFirst, "..", topology::kRocePortLast));
  }
  ports_.assign(ports.begin(), ports.end());
  // A file of ports by ranks goes before the plan.
  if (ports_.empty()) ways_ = QueuePairWays(shared_.ways, Rank(peer_), leads_);
  return absl::OkStatus();
}

bool LaneSetup::FollowsPaths(const Lane& lane, int index) {
  if (!ways_ || lane.pair == nullptr || !lane.has_remote) return false;
  const Rail& rail = (*shared_.rails)[lane.pair->rail()];
  const auto number = static_cast<size_t>(index);
  if (!rail.port.ethernet || !ways_.IsOffItsWay(number, rail.gid.gid.gid, lane.remote.gid)) {
    return false;
  }
  ways_.Follow(number, rail.gid.gid.gid, lane.remote.gid);
  return true;
}

int LaneSetup::RailFor(int lane, uint32_t epoch, int preferred) const {
  Rails& all = *shared_.rails;
  const int count = all.size();
  const int first = preferred >= 0 && preferred < count
                        ? preferred
                        : static_cast<int>((static_cast<uint32_t>(lane) + epoch - 1) %
                                           static_cast<uint32_t>(count));
  for (const bool strict : {true, false}) {
    for (int i = 0; i < count; ++i) {
      const int rail = (first + i) % count;
      if (!all[rail].lost && !(strict && all[rail].port_down)) return rail;
    }
  }
  return first;
}

bool LaneSetup::IsUp(int rail) const {
  const Rail& one = (*shared_.rails)[rail];
  return !one.lost && !one.port_down;
}

double LaneSetup::RateLike(int rail, absl::Span<const Lane> lanes) const {
  double sum = 0;
  int count = 0;
  for (const Lane& lane : lanes) {
    if (!lane.Carries() || !lane.rate_seen || lane.pair->rail() != rail) continue;
    sum += lane.rate;
    ++count;
  }
  return count > 0 ? sum / count : std::max(1e9, (*shared_.rails)[rail].port.gbps * 1e9 / 8);
}

absl::Status LaneSetup::Make(Lane& lane, int index, uint32_t epoch, int rail,
                             absl::Span<const Lane> lanes, QueuePairUser* user) {
  lane.Reset();
  lane.epoch = epoch;
  WEFT_ASSIGN_OR_RETURN(lane.pair, shared_.rails->MakeQueuePair(rail, user, index));
  lane.receives_posted = kReceiveDepth;
  const uint64_t mixed = Mix(link_, index, epoch);
  lane.local_psn = static_cast<uint32_t>(mixed >> 16) & kPsnMask;
  const size_t turn = static_cast<size_t>(index) + epoch - 1;
  lane.local_port = !ports_.empty()
                        ? ports_[turn % ports_.size()]
                        : static_cast<uint16_t>(topology::kRocePortFirst | (mixed & 0x3FFF));
  lane.rate = RateLike(rail, lanes);
  return absl::OkStatus();
}

absl::Status LaneSetup::Connect(Lane& lane, int index, int wanted, const Control& remote,
                                int remote_rails) {
  lane.remote = remote;
  lane.has_remote = true;
  Rails& rails = *shared_.rails;
  const Rail& rail = rails[lane.pair->rail()];
  if (rail.port.ethernet != (remote.ethernet != 0)) {
    return absl::UnavailableError("one side's port is Ethernet, the other's InfiniBand");
  }
  if (remote.mtu < kMtuLeast || remote.mtu > kMtuMost) {
    return absl::InvalidArgumentError(absl::StrCat("an MTU of ", remote.mtu, " bytes"));
  }
  if (remote.rail >= remote_rails) {
    return absl::InvalidArgumentError(
        absl::StrCat("rail ", remote.rail, " of a peer that has ", remote_rails));
  }
  if (ways_ && rail.port.ethernet) {
    const bool again = lane.epoch > 1 || index >= wanted;
    WEFT_ASSIGN_OR_RETURN(const uint16_t planned, ways_.Port(static_cast<size_t>(index), wanted,
                                                             again, rail.gid.gid.gid, remote.gid));
    if (planned != 0) lane.local_port = planned;
  }
  NicPath path = rails.PathFrom(lane.pair->rail(), lane.local_port);
  path.mtu = std::min(rail.port.mtu, static_cast<int>(remote.mtu));
  lane.mtu = static_cast<uint32_t>(path.mtu);
  // What this side sends, if it does not lead, is clear-to-sends.
  const int own_class = rails.options().clear_to_send_traffic_class;
  if (!leads_ && own_class >= 0) path.traffic_class = own_class;
  path.remote_queue_pair = remote.queue_pair;
  path.remote_psn = remote.psn;
  path.local_psn = lane.local_psn;
  path.remote_gid = remote.gid;
  path.remote_lid = remote.lid;
  lane.state = Lane::State::kConnecting;
  lane.pair->Connect(path);
  return absl::OkStatus();
}

}  // namespace weft::net
