// What the two sides say of lanes (entry.h has the list).
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "net/verbs/lane_set.h"

namespace weft::net {

Control LaneSet::ControlOf(ControlKind kind, int index) const {
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

absl::Status LaneSet::OnControl(const Control& control, const std::string& text) {
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
      trouble_.Begin(shared_.now, absl::StrCat(peer_text_, ": ", text));
      lane.Reset();
      Retry(lane);
      return absl::OkStatus();
    case ControlKind::kBroken:
      Fail(index, absl::StrCat("failed at the other side: ", text));
      return absl::OkStatus();
    case ControlKind::kDown: {
      trouble_.Begin(shared_.now);
      EndPair(index);
      lane.state = Lane::State::kNone;
      owner_.OnLaneEnded(index, control.record);
      Control downed = ControlOf(ControlKind::kDowned, index);
      downed.record = owner_.arrivals();
      owner_.Say(downed, "");
      return owner_.OnTaken(control.record.base);
    }
    case ControlKind::kDowned:
      if (lane.state != Lane::State::kDown) return absl::OkStatus();
      owner_.OnLaneEnded(index, control.record);
      if (lane.is_spare) {
        StopRetrying(lane);
      } else {
        Retry(lane);
      }
      return owner_.OnTaken(control.record.base);
    default:
      return absl::InternalError("no control of a lane");
  }
}

absl::Status LaneSet::OnOffer(const Control& control) {
  const int index = control.lane;
  Lane& lane = lanes_[control.lane];
  if (lane.pair != nullptr) return absl::InvalidArgumentError("an offer for a lane that is there");
  lane.epoch = control.epoch;
  const int rail = setup_.RailFor(index, control.epoch, control.rail);
  absl::Status made;
  if (rail != control.rail && control.rail < shared_.rails->size() && lane.refused < hello_.rails) {
    // Rails may be networks of their own: the leader's others first.
    ++lane.refused;
    made = absl::UnavailableError(
        absl::StrCat((*shared_.rails)[control.rail].device->name(), " is down or lost here"));
  } else if (index >= wanted_ && !setup_.IsUp(rail)) {
    made = absl::UnavailableError("no port is up here for a spare");
  } else {
    made = Make(index, control.epoch, rail);
    if (made.ok()) made = Connect(index, control);
  }
  if (absl::IsInvalidArgument(made)) return made;
  if (!made.ok()) Refuse(index, made.message());
  return absl::OkStatus();
}

void LaneSet::Refuse(int index, absl::string_view why) {
  Lane& lane = (*this)[index];
  trouble_.Begin(shared_.now, std::string(why));
  lane.Reset();
  lane.state = Lane::State::kNone;
  owner_.Say(ControlOf(ControlKind::kRefuse, index), why);
}

absl::Status LaneSet::OnAnswer(const Control& control) {
  const int index = control.lane;
  Lane& lane = lanes_[control.lane];
  if (lane.state != Lane::State::kOffered) return absl::OkStatus();
  absl::Status connected = Connect(index, control);
  if (absl::IsInvalidArgument(connected)) return connected;
  if (!connected.ok()) Fail(index, std::string(connected.message()));
  return absl::OkStatus();
}

void LaneSet::OnConnected(int index, const absl::Status& status) {
  Lane& lane = (*this)[index];
  if (ended_ || lane.state != Lane::State::kConnecting) return;
  owner_.WantLaneTurn();
  if (!leads_) {
    if (!status.ok()) return Refuse(index, status.message());
    lane.refused = 0;
    lane.state = Lane::State::kAnswered;
    return owner_.Say(ControlOf(ControlKind::kAnswer, index), "");
  }
  if (!status.ok()) return Fail(index, std::string(status.message()));
  owner_.Say(ControlOf(ControlKind::kReady, index), "");
  if (lane.epoch > 1) WEFT_LOG_INFO("verbs: a new queue pair: ", Text(lane));
  GoLive(index);
}

}  // namespace weft::net
