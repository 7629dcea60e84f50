// Controls: the first words of both sides, and what they say of lanes (entry.h has the list).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/wire.h"
#include "topology/ecmp/roce.h"

namespace weft::net {

// ---- The first words

absl::Status VerbsWire::Begin(absl::Span<const uint16_t> ports) {
  for (uint16_t port : ports) {
    if (port >= topology::kRocePortFirst) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("verbs.source_ports gives port ", port, " for rank ", peer_, "; RoCE has ",
                     topology::kRocePortFirst, "..", topology::kRocePortLast));
  }
  ports_.assign(ports.begin(), ports.end());
  // A file of ports by ranks goes before the plan.
  if (ports_.empty()) ways_ = QueuePairWays(shared_.ways, Rank(peer_), leads_);
  begun_ = true;
  (leads_ ? out_slot_ : in_slot_) = SlotBytes(rails().options().eager_max);
  const size_t ring_bytes = kRingSlots * (in_slot_ + out_slot_);
  ring_ = std::make_unique<Line[]>(ring_bytes / sizeof(Line));  // NOLINT
  WEFT_ASSIGN_OR_RETURN(ring_keys_, rails().memory().Acquire(ring_.get(), ring_bytes, false));
  Control hello;
  hello.kind = ControlKind::kHello;
  hello.lanes = static_cast<uint8_t>(rails().options().queue_pairs);
  hello.rails = static_cast<uint8_t>(rails().size());
  hello.eager_max = static_cast<uint32_t>(rails().options().eager_max);
  hello.ring = reinterpret_cast<uintptr_t>(ring_.get());
  for (size_t rail = 0; rail < hello.rails; ++rail) {
    hello.ring_keys[rail] = ring_keys_->keys[rail].remote_key;
  }
  hello.link = token_;
  std::string text = absl::StrCat("host ", shared_.host, ", ");
  for (int rail = 0; rail < rails().size(); ++rail) {
    absl::StrAppend(&text, rail > 0 ? "+" : "", rails()[rail].device->name());
  }
  Say(hello, text);
  return absl::OkStatus();
}

void VerbsWire::Say(const Control& control, absl::string_view text) {
  owner_.SendControl(EncodeControl(control, text));
}

absl::Status VerbsWire::OnControl(absl::string_view bytes) {
  if (closed_ || !failure_.ok()) return absl::OkStatus();
  std::string text;
  WEFT_ASSIGN_OR_RETURN(const Control control, DecodeControl(bytes, &text));
  WantTurn();
  if (control.kind == ControlKind::kHello) return OnHello(control, text);
  if (!ready_ || control.lane >= lanes_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("lane ", control.lane, " of ", lanes_.size()));
  }
  switch (control.kind) {
    case ControlKind::kAsk:
      asked_ = control.epoch;
      asked_mark_ = rails().Mark();
      return absl::OkStatus();
    case ControlKind::kTell:
      return OnTell(control);
    case ControlKind::kDiffers:
      if (leads_) owner_.OnEagerDiffers(control.rail != 0, text);
      return absl::OkStatus();
    case ControlKind::kGiveUp:
      Fail(absl::UnavailableError(absl::StrCat("the other side says: ", text)));
      return absl::OkStatus();
    default:
      return OnLaneControl(control, text);
  }
}

absl::Status VerbsWire::OnHello(const Control& control, const std::string& text) {
  if (ready_ || control.lanes == 0 || control.rails == 0) {
    return absl::InvalidArgumentError("a hello that is a second one, or names no queue pair");
  }
  hello_ = control;
  eager_max_ = std::min<size_t>(rails().options().eager_max, control.eager_max);
  if (leads_) remote_slot_ = SlotBytes(control.eager_max);
  peer_text_ = text;
  ready_ = true;
  wanted_ = std::max<int>(control.lanes, rails().options().queue_pairs);
  lanes_ = std::vector<Lane>(static_cast<size_t>(std::min(kVerbsLanesMax, wanted_ + kSpareLanes)));
  for (size_t lane = static_cast<size_t>(wanted_); lane < lanes_.size(); ++lane) {
    lanes_[lane].is_spare = true;
  }
  for (int lane = 0; leads_ && lane < wanted_; ++lane) OfferLane(lane);
  return absl::OkStatus();
}

// ---- Of lanes

Control VerbsWire::LaneControl(ControlKind kind, int index) const {
  const Lane& lane = lanes_[static_cast<size_t>(index)];
  Control out;
  out.kind = kind;
  out.lane = static_cast<uint8_t>(index);
  out.epoch = lane.epoch;
  if (lane.pair == nullptr) return out;
  const Rail& rail = (*shared_.rails)[lane.pair->rail()];
  out.rail = static_cast<uint8_t>(lane.pair->rail());
  out.ethernet = rail.port.ethernet ? 1 : 0;
  out.queue_pair = lane.pair->pair().number();
  out.psn = lane.local_psn;
  out.mtu = static_cast<uint32_t>(rail.port.mtu);
  out.lid = rail.port.lid;
  out.source_port = lane.local_port;
  out.gid = rail.gid.gid.gid;
  return out;
}

absl::Status VerbsWire::OnLaneControl(const Control& control, const std::string& text) {
  Lane& lane = lanes_[control.lane];
  const int index = control.lane;
  const bool current = control.epoch == lane.epoch;
  const bool for_follower = control.kind == ControlKind::kOffer ||
                            control.kind == ControlKind::kReady ||
                            control.kind == ControlKind::kDown;
  if (for_follower == leads_ || (!current && control.kind != ControlKind::kOffer)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a control of kind ", static_cast<int>(control.kind), " for lane ",
                     control.lane, ", epoch ", control.epoch, " instead of ", lane.epoch));
  }
  switch (control.kind) {
    case ControlKind::kOffer:
      return OnOffer(control);
    case ControlKind::kAnswer:
      return OnAnswer(control);
    case ControlKind::kReady:
      if (lane.state == Lane::State::kAnswered) GoLive(index);
      return absl::OkStatus();
    case ControlKind::kRefuse:
      if (lane.state != Lane::State::kOffered) return absl::OkStatus();
      last_failure_ = absl::StrCat(peer_text_, ": ", text);
      trouble_since_ = std::min(trouble_since_, shared_.now);
      lane.Reset();
      Retry(lane);
      return absl::OkStatus();
    case ControlKind::kBroken:
      LaneFailed(index, absl::StrCat("failed at the other side: ", text));
      return absl::OkStatus();
    case ControlKind::kDown: {
      trouble_since_ = std::min(trouble_since_, shared_.now);
      EndPair(index);
      lane.state = Lane::State::kNone;
      Requeue(index, control.record);
      Control downed = LaneControl(ControlKind::kDowned, index);
      downed.record = in_;
      Say(downed);
      return NoteTaken(control.record.base);
    }
    case ControlKind::kDowned:
      if (lane.state != Lane::State::kDown) return absl::OkStatus();
      Requeue(index, control.record);
      if (lane.is_spare) {
        StopRetrying(lane);
      } else {
        Retry(lane);
      }
      return NoteTaken(control.record.base);
    default:
      return absl::InternalError("no control of a lane");
  }
}

absl::Status VerbsWire::OnOffer(const Control& control) {
  const int index = control.lane;
  Lane& lane = lanes_[control.lane];
  if (lane.pair != nullptr) return absl::InvalidArgumentError("an offer for a lane that is there");
  lane.epoch = control.epoch;
  const int rail = RailFor(index, control.epoch, control.rail);
  absl::Status made;
  if (rail != control.rail && control.rail < rails().size() && lane.refused < hello_.rails) {
    // Rails may be networks of their own: the leader's others first.
    ++lane.refused;
    made = absl::UnavailableError(
        absl::StrCat(rails()[control.rail].device->name(), " is down or lost here"));
  } else if (index >= wanted_ && !IsUp(rail)) {
    made = absl::UnavailableError("no port is up here for a spare");
  } else {
    made = MakePair(index, control.epoch, rail);
    if (made.ok()) made = ConnectPair(index, control);
  }
  if (absl::IsInvalidArgument(made)) return made;
  if (!made.ok()) Refuse(index, made.message());
  return absl::OkStatus();
}

void VerbsWire::Refuse(int index, absl::string_view why) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  last_failure_ = std::string(why);
  trouble_since_ = std::min(trouble_since_, shared_.now);
  lane.Reset();
  lane.state = Lane::State::kNone;
  Say(LaneControl(ControlKind::kRefuse, index), why);
}

absl::Status VerbsWire::OnAnswer(const Control& control) {
  const int index = control.lane;
  Lane& lane = lanes_[control.lane];
  if (lane.state != Lane::State::kOffered) return absl::OkStatus();
  absl::Status connected = ConnectPair(index, control);
  if (absl::IsInvalidArgument(connected)) return connected;
  if (!connected.ok()) LaneFailed(index, std::string(connected.message()));
  return absl::OkStatus();
}

void VerbsWire::OnConnected(int index, const absl::Status& status) {
  Lane& lane = lanes_[static_cast<size_t>(index)];
  if (closed_ || !failure_.ok() || lane.state != Lane::State::kConnecting) return;
  WantTurn();
  if (!leads_) {
    if (!status.ok()) return Refuse(index, status.message());
    lane.refused = 0;
    lane.state = Lane::State::kAnswered;
    return Say(LaneControl(ControlKind::kAnswer, index));
  }
  if (!status.ok()) return LaneFailed(index, std::string(status.message()));
  Say(LaneControl(ControlKind::kReady, index));
  if (lane.epoch > 1) WEFT_LOG_INFO("verbs: a new queue pair: ", LaneText(lane));
  GoLive(index);
}

}  // namespace weft::net
