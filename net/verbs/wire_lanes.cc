// Lanes: making, losing and remaking queue pairs. What both sides say of them is in
// wire_controls.cc.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status.h"
#include "net/verbs/wire.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

constexpr absl::Duration kRetryFirst = absl::Milliseconds(10);
constexpr absl::Duration kRetryLongest = absl::Seconds(2);
constexpr int kRetriesAtLeast = 20;
constexpr uint32_t kPsnMask = (1u << 24) - 1;
constexpr uint32_t kMtuLeast = 256, kMtuMost = 4096;  // of InfiniBand

uint64_t Mix(uint64_t token, int lane, uint32_t epoch) {
  uint64_t state = token + static_cast<uint64_t>(lane) * kVerbsLanesMax + (uint64_t{epoch} << 32);
  return SplitMix64(state);
}

}  // namespace

// ---- Making

// The rail of the same number as the other side's, as rails are mostly networks of their own; the
// next one after a failure; none that is known to be out of order, where there is another.
int VerbsWire::RailFor(int lane, uint32_t epoch, int preferred) const {
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

// What a new queue pair may be good for: what the others of that rail are, or the port.
double VerbsWire::RateLike(int rail) const {
  double sum = 0;
  int count = 0;
  for (const Lane& lane : lanes_) {
    if (!lane.Carries() || !lane.rate_seen || lane.pair->rail() != rail) continue;
    sum += lane.rate;
    ++count;
  }
  return count > 0 ? sum / count : std::max(1e9, rails()[rail].port.gbps * 1e9 / 8);
}

absl::Status VerbsWire::MakePair(int index, uint32_t epoch, int rail) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  lane.Reset();
  lane.epoch = epoch;
  ++pairs_made_;
  WEFT_ASSIGN_OR_RETURN(lane.pair, rails().MakeQueuePair(rail, this, index));
  lane.receives_posted = kReceiveDepth;
  const uint64_t mixed = Mix(token_, index, epoch);
  lane.local_psn = static_cast<uint32_t>(mixed >> 16) & kPsnMask;
  const size_t turn = static_cast<size_t>(index) + epoch - 1;
  lane.local_port = !ports_.empty()
                        ? ports_[turn % ports_.size()]
                        : static_cast<uint16_t>(topology::kRocePortFirst | (mixed & 0x3FFF));
  lane.rate = RateLike(rail);
  return absl::OkStatus();
}

// Then OnConnected().
absl::Status VerbsWire::ConnectPair(int index, const Control& remote) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  lane.remote = remote;
  lane.has_remote = true;
  const Rail& rail = rails()[lane.pair->rail()];
  if (rail.port.ethernet != (remote.ethernet != 0)) {
    return absl::UnavailableError("one side's port is Ethernet, the other's InfiniBand");
  }
  if (remote.mtu < kMtuLeast || remote.mtu > kMtuMost) {
    return absl::InvalidArgumentError(absl::StrCat("an MTU of ", remote.mtu, " bytes"));
  }
  if (remote.rail >= hello_.rails) {
    return absl::InvalidArgumentError(
        absl::StrCat("rail ", remote.rail, " of a peer that has ", hello_.rails));
  }
  if (ways_ && rail.port.ethernet) {
    const bool again = lane.epoch > 1 || index >= wanted_;
    WEFT_ASSIGN_OR_RETURN(const uint16_t planned, ways_.Port(static_cast<size_t>(index), wanted_,
                                                             again, rail.gid.gid.gid, remote.gid));
    if (planned != 0) lane.local_port = planned;
  }
  NicPath path = rails().PathFrom(lane.pair->rail(), lane.local_port);
  path.mtu = std::min(rail.port.mtu, static_cast<int>(remote.mtu));
  lane.mtu = static_cast<uint32_t>(path.mtu);
  // What this side sends, if it does not lead, is clear-to-sends.
  const int own_class = rails().options().clear_to_send_traffic_class;
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

void VerbsWire::OfferLane(int index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  const uint32_t epoch = lane.epoch + 1;
  lane.retry_at = absl::InfiniteFuture();
  lane.offered_at = shared_.now;
  lane.is_spare = false;
  absl::Status made = MakePair(index, epoch, RailFor(index, epoch, -1));
  if (made.ok()) {
    lane.state = Lane::State::kOffered;
    return Say(LaneControl(ControlKind::kOffer, index));
  }
  last_failure_ = std::string(made.message());
  trouble_since_ = std::min(trouble_since_, shared_.now);
  lane.Reset();
  Retry(lane);
}

// One that replaces a lost one may take the same dead path again, and any new one another: it is
// tried with a write of no bytes, and gets nothing else until that is acknowledged.
void VerbsWire::GoLive(int index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  lane.state = Lane::State::kLive;
  if (lane.epoch == 1 && index < wanted_) return;
  NicWrite probe;
  probe.id = lane.pair->SendId(lane.next_send);
  probe.remote = hello_.ring;
  probe.remote_key = hello_.ring_keys[lane.remote.rail];
  probe.signaled = true;
  lane.NotePosted(1, Lane::kProbe, 0, shared_.now);
  BeginTrial(index);
  absl::Status posted = lane.pair->pair().PostWrites({&probe, 1});
  if (!posted.ok()) LaneFailed(index, std::string(posted.message()));
}

// ---- Losing

std::string VerbsWire::LaneText(const Lane& lane) const {
  std::string out = absl::StrCat("host ", shared_.host, ", ");
  if (lane.pair != nullptr) {
    const Rail& rail = (*shared_.rails)[lane.pair->rail()];
    absl::StrAppend(&out, rail.device->name(), " port ", rail.port.number, ", GID ",
                    GidText(rail.gid.gid.gid), ", queue pair ", lane.pair->pair().number(),
                    ", source port ", lane.local_port);
  }
  absl::StrAppend(&out, " -> ", peer_text_);
  if (lane.has_remote) {
    absl::StrAppend(&out, ", GID ", GidText(lane.remote.gid), ", queue pair ",
                    lane.remote.queue_pair, ", source port ", lane.remote.source_port);
  }
  return out;
}

void VerbsWire::LaneFailed(int index, const std::string& why) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  if (closed_ || lane.pair == nullptr) return;
  std::string failure = absl::StrCat(LaneText(lane), ": ", why);
  const bool has_worked = lane.proven && lane.state != Lane::State::kConnecting;
  if (has_worked) {
    WEFT_LOG_WARN("verbs: queue pair lost, ", failure);
  } else {
    WEFT_LOG_INFO("verbs: tried in vain, ", failure);
  }
  // What was lost says more than what was tried instead.
  if (has_worked || last_failure_.empty()) last_failure_ = std::move(failure);
  trouble_since_ = std::min(trouble_since_, shared_.now);
  EndPair(index);
  lane.state = Lane::State::kDown;
  Control control = LaneControl(leads_ ? ControlKind::kDown : ControlKind::kBroken, index);
  control.record = in_;
  Say(control, leads_ ? "" : why);
  WantTurn();
}

// Ends the queue pair on both sides, without a fault. Leader only.
void VerbsWire::RetirePair(int index) {
  EndPair(index);
  Lane& lane = lanes_[static_cast<size_t>(index)];
  lane.state = Lane::State::kDown;
  Control control = LaneControl(ControlKind::kDown, index);
  control.record = in_;
  Say(control);
  WantTurn();
}

void VerbsWire::EndPair(int index) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  if (lane.pair == nullptr) return;
  const int rail = lane.pair->rail();
  lane.Reset();
  TakeUnreported(index, rail);
}

// What was posted on the lane and has not arrived waits again, before all that is younger.
void VerbsWire::Requeue(int lane, const ArrivalRecord& record) {
  std::deque<uint64_t> again;
  for (uint64_t number = taken_; number < next_; ++number) {
    Out& entry = out(number);
    if (entry.lane != lane) continue;
    if (record.Has(number)) {
      entry.arrived = true;
      NoteDelivered(entry);
      continue;
    }
    if (entry.delivered && entry.length > 0) {  // its payload may be another by now
      return Fail(absl::DataLossError(absl::StrCat(
          "entry ", number, " was acknowledged on ", LaneText(lanes_[static_cast<size_t>(lane)]),
          ", but the other side has no trace of it: its device or its memory is "
          "faulty")));
    }
    entry.lane = -1;
    entry.delivered = false;
    ++lanes_[static_cast<size_t>(lane)].repeats;
    again.push_back(number);
  }
  queue_.insert(queue_.begin(), again.begin(), again.end());
  std::sort(queue_.begin(), queue_.end());
  WantTurn();
}

// At once the first time, then with a growing pause since the last time, of which many fit into
// verbs.give_up_after.
void VerbsWire::Retry(Lane& lane) {
  lane.state = Lane::State::kNone;
  const absl::Duration longest =
      std::min(kRetryLongest, rails().options().give_up_after / kRetriesAtLeast);
  const absl::Duration pause =
      lane.failures == 0 ? absl::ZeroDuration()
                         : std::min(longest, kRetryFirst * std::exp2(std::min(lane.failures, 20)));
  ++lane.failures;
  lane.retry_at = std::max(shared_.now, lane.offered_at + pause);
  WantTurn();
}

int VerbsWire::LiveLanes() const {
  return static_cast<int>(std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.state == Lane::State::kLive;
  }));
}

std::string VerbsWire::Describe() const {
  std::string out = absl::StrCat(wanted_, wanted_ == 1 ? " queue pair" : " queue pairs");
  for (const Lane& lane : lanes_) {
    if (lane.pair != nullptr || !lane.is_spare) absl::StrAppend(&out, "; ", LaneText(lane));
  }
  return out;
}

void VerbsWire::AddTo(FlowCounters* counters) const {
  for (const Lane& lane : lanes_) {
    counters->repeats += lane.repeats;
    counters->rtt_ns = std::max(counters->rtt_ns, static_cast<int64_t>(lane.trip));
  }
}

std::vector<LaneReport> VerbsWire::Lanes() const {
  std::vector<LaneReport> out;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.is_spare && lane.bytes == 0) continue;
    LaneReport report;
    report.name = absl::StrCat("lane ", i);
    if (lane.pair != nullptr && lane.has_remote) {
      const Rail& rail = (*shared_.rails)[lane.pair->rail()];
      absl::StrAppend(&report.name, ": ", rail.device->name(), " ", GidText(rail.gid.gid.gid),
                      " -> ", GidText(lane.remote.gid));
      if (rail.port.ethernet) report.source_port = lane.local_port;
    }
    report.bytes = lane.bytes;
    report.retransmissions = lane.repeats;
    if (lane.trip > 0) report.rtt = absl::Nanoseconds(lane.trip);
    out.push_back(std::move(report));
  }
  return out;
}

}  // namespace weft::net
