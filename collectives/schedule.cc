#include "collectives/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter ||
         kind == CollectiveKind::kReduce;
}

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather || kind == CollectiveKind::kScatter;
}

namespace {

uint64_t EndOf(const std::vector<uint64_t>& counts, const std::vector<uint64_t>& offsets) {
  uint64_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) end = std::max(end, offsets[i] + counts[i]);
  }
  return end;
}

}  // namespace

uint64_t InputLength(const CollectiveSpec& spec) {
  const uint64_t n = static_cast<uint64_t>(spec.size);
  const bool is_root = spec.rank == spec.root;
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduce:
    case CollectiveKind::kGather:
      return spec.count;
    case CollectiveKind::kBroadcast:
      return is_root ? spec.count : 0;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllToAll:
      return n * spec.count;
    case CollectiveKind::kScatter:
      return is_root ? n * spec.count : 0;
    case CollectiveKind::kAllGatherV:
      return spec.output_counts[static_cast<size_t>(spec.rank)];
    case CollectiveKind::kAllToAllV:
      return EndOf(spec.input_counts, spec.input_offsets);
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSendReceive:
      return 0;
  }
  return 0;
}

uint64_t OutputLength(const CollectiveSpec& spec) {
  const uint64_t n = static_cast<uint64_t>(spec.size);
  const bool is_root = spec.rank == spec.root;
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kScatter:
      return spec.count;
    case CollectiveKind::kReduce:
      return is_root ? spec.count : 0;
    case CollectiveKind::kGather:
      return is_root ? n * spec.count : 0;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kAllToAll:
      return n * spec.count;
    case CollectiveKind::kAllGatherV:
    case CollectiveKind::kAllToAllV:
      return EndOf(spec.output_counts, spec.output_offsets);
    case CollectiveKind::kBarrier:
    case CollectiveKind::kSendReceive:
      return 0;
  }
  return 0;
}

int64_t InputShift(const CollectiveSpec& spec) {
  const int64_t own = static_cast<int64_t>(spec.rank) * static_cast<int64_t>(spec.count);
  switch (spec.kind) {
    case CollectiveKind::kAllGather:
    case CollectiveKind::kGather:
      return own;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kScatter:
      return -own;
    case CollectiveKind::kAllGatherV:
      return static_cast<int64_t>(spec.output_offsets[static_cast<size_t>(spec.rank)]);
    default:
      return 0;
  }
}

const char* ToString(StepKind kind) {
  static constexpr const char* kNames[] = {"send",   "receive", "receive+reduce", "copy",
                                           "reduce", "scale",   "reduce all"};
  return kNames[static_cast<int>(kind)];
}

namespace {

std::string RangeText(Place place, uint64_t length) {
  static constexpr const char* kNames[] = {"input", "output", "scratch"};
  return absl::StrCat(kNames[static_cast<int>(place.buffer)], "[", place.offset, ",",
                      place.offset + length, ")");
}

}  // namespace

std::string ToText(const RankSchedule& schedule) {
  std::string text;
  for (size_t i = 0; i < schedule.steps.size(); ++i) {
    const Step& step = schedule.steps[i];
    std::string out = RangeText(step.out, step.length);
    std::string left = RangeText(step.left, step.length);
    absl::StrAppend(&text, i, " ", ToString(step.kind), " ");
    switch (step.kind) {
      case StepKind::kSend:
        absl::StrAppend(&text, left, " -> ", step.peer);
        break;
      case StepKind::kReceive:
        absl::StrAppend(&text, out, " <- ", step.peer);
        break;
      case StepKind::kReceiveReduce:
        absl::StrAppend(&text, out, " = ", left, " + * <- ", step.peer);
        break;
      case StepKind::kCopy:
        absl::StrAppend(&text, out, " = ", left);
        break;
      case StepKind::kReduce:
        absl::StrAppend(&text, out, " = ", left, " + ", RangeText(step.right, step.length));
        break;
      case StepKind::kScale:
        absl::StrAppend(&text, out);
        break;
      case StepKind::kReduceAll:
        absl::StrAppend(&text, out, " = ", left);
        for (Place place : schedule.More(step)) {
          absl::StrAppend(&text, " + ", RangeText(place, step.length));
        }
        if (step.averages) absl::StrAppend(&text, ", averaged");
        break;
    }
    if (step.after_count > 0) absl::StrAppend(&text, "  after");
    for (uint32_t id : schedule.After(step)) absl::StrAppend(&text, " ", id);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

uint32_t ScheduleBuilder::Append(Step step, AfterList after) {
  const bool message = step.peer >= 0;
  appended_ = step.length > 0 || (message && empty_messages_);
  if (!appended_) return kNone;
  step.after_begin = static_cast<uint32_t>(schedule_.after.size());
  schedule_.steps.push_back(step);
  for (uint32_t id : after) AlsoAfter(id);
  return static_cast<uint32_t>(schedule_.steps.size() - 1);
}

void ScheduleBuilder::AlsoAfter(uint32_t step) {
  if (step == kNone || !appended_) return;
  WEFT_CHECK(step + 1 < schedule_.steps.size(), "step " << step << " does not precede");
  schedule_.after.push_back(step);
  ++schedule_.steps.back().after_count;
}

void ScheduleBuilder::AlsoAfter(absl::Span<const uint32_t> steps) {
  for (uint32_t step : steps) AlsoAfter(step);
}

void ScheduleBuilder::SortByTurn(std::vector<uint32_t> turns) {
  const size_t count = schedule_.steps.size();
  WEFT_CHECK(turns.size() == count, turns.size() << " turns of " << count << " steps");
  std::vector<uint32_t> order(count), place(count);  // by new id: the old one; and back
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return turns[a] < turns[b]; });
  for (uint32_t id = 0; id < count; ++id) place[order[id]] = id;
  RankSchedule sorted{.more = schedule_.more, .scratch_length = schedule_.scratch_length};
  sorted.after.reserve(schedule_.after.size());
  for (uint32_t id = 0; id < count; ++id) {
    Step step = schedule_.steps[order[id]];
    const absl::Span<const uint32_t> after = schedule_.After(step);
    step.after_begin = static_cast<uint32_t>(sorted.after.size());
    for (uint32_t before : after) {
      WEFT_CHECK(place[before] < id,
                 "a step of turn " << turns[order[id]] << " is after one of " << turns[before]);
      sorted.after.push_back(place[before]);
    }
    sorted.steps.push_back(step);
    sorted.turns.push_back(turns[order[id]]);
  }
  schedule_ = std::move(sorted);
  appended_ = false;
}

std::vector<uint32_t> ScheduleBuilder::Embed(const RankSchedule& part, absl::Span<const int> ranks,
                                             Place input, Place output,
                                             absl::Span<const uint32_t> after) {
  const Place bases[3] = {input, output, Scratch(part.scratch_length)};
  const uint32_t first = static_cast<uint32_t>(schedule_.steps.size());
  auto moved = [&](Place place) { return bases[static_cast<int>(place.buffer)] + place.offset; };
  std::vector<bool> last(part.steps.size(), true);
  appended_ = true;
  for (Step step : part.steps) {
    const absl::Span<const uint32_t> before = part.After(step);
    if (step.peer >= 0) step.peer = ranks[static_cast<size_t>(step.peer)];
    step.out = moved(step.out), step.left = moved(step.left), step.right = moved(step.right);
    const absl::Span<const Place> more = part.More(step);
    step.more_begin = static_cast<uint32_t>(schedule_.more.size());
    for (Place place : more) schedule_.more.push_back(moved(place));
    step.after_begin = static_cast<uint32_t>(schedule_.after.size());
    step.after_count = 0;
    schedule_.steps.push_back(step);
    for (uint32_t id : before) AlsoAfter(first + id), last[id] = false;
    if (before.empty()) AlsoAfter(after);
  }
  if (part.steps.empty()) return {after.begin(), after.end()};
  std::vector<uint32_t> ends;
  for (size_t id = 0; id < last.size(); ++id) {
    if (last[id]) ends.push_back(first + static_cast<uint32_t>(id));
  }
  return ends;
}

uint32_t ScheduleBuilder::Send(int peer, Place from, uint64_t length, AfterList after) {
  return Append({.kind = StepKind::kSend, .peer = peer, .length = length, .left = from}, after);
}

uint32_t ScheduleBuilder::Receive(int peer, Place out, uint64_t length, AfterList after) {
  return Append({.kind = StepKind::kReceive, .peer = peer, .length = length, .out = out}, after);
}

uint32_t ScheduleBuilder::ReceiveReduce(int peer, Place out, Place left, uint64_t length,
                                        AfterList after) {
  return Append(
      {.kind = StepKind::kReceiveReduce, .peer = peer, .length = length, .out = out, .left = left},
      after);
}

uint32_t ScheduleBuilder::Copy(Place out, Place from, uint64_t length, AfterList after) {
  return Append({.kind = StepKind::kCopy, .length = length, .out = out, .left = from}, after);
}

uint32_t ScheduleBuilder::Reduce(Place out, Place left, Place right, uint64_t length,
                                 AfterList after) {
  return Append(
      {.kind = StepKind::kReduce, .length = length, .out = out, .left = left, .right = right},
      after);
}

uint32_t ScheduleBuilder::ReduceAll(Place out, absl::Span<const Place> operands, uint64_t length) {
  WEFT_CHECK(operands.size() >= 2, operands.size() << " operands");
  Step step{.kind = StepKind::kReduceAll, .length = length, .out = out, .left = operands[0]};
  step.more_begin = static_cast<uint32_t>(schedule_.more.size());
  step.more_count = static_cast<uint32_t>(operands.size()) - 1;
  const uint32_t id = Append(step, {});
  if (id == kNone) return kNone;
  schedule_.more.insert(schedule_.more.end(), operands.begin() + 1, operands.end());
  return id;
}

uint32_t ScheduleBuilder::Scale(Place out, uint64_t length, AfterList after) {
  return Append({.kind = StepKind::kScale, .length = length, .out = out}, after);
}

uint32_t ScheduleBuilder::Average(const CollectiveSpec& spec, uint32_t reduced) {
  if (!spec.average || reduced == kNone) return reduced;
  const Step made = schedule_.steps[reduced];
  const bool reduces = made.kind == StepKind::kReceiveReduce || made.kind == StepKind::kReduce ||
                       made.kind == StepKind::kReduceAll;
  if (!spec.rounds_once || !reduces) return Scale(made.out, made.length, {reduced});
  if (made.kind != StepKind::kReceiveReduce) {
    Step& step = schedule_.steps[reduced];
    step.averages = true;
    if (made.kind == StepKind::kReduceAll) return reduced;
    step.kind = StepKind::kReduceAll;
    step.more_begin = static_cast<uint32_t>(schedule_.more.size()), step.more_count = 1;
    schedule_.more.push_back(made.right);
    step.right = {};
    return reduced;
  }
  AverageSlot& slot = SlotFor(reduced);
  Step& receive = schedule_.steps[reduced];
  receive.kind = StepKind::kReceive;
  receive.out = slot.at, receive.left = {};
  slot.read = ReduceAll(made.out, {made.left, slot.at}, made.length);
  schedule_.steps.back().averages = true;
  AlsoAfter(reduced);
  return slot.read;
}

ScheduleBuilder::AverageSlot& ScheduleBuilder::SlotFor(uint32_t receive) {
  const uint64_t length = schedule_.steps[receive].length;
  // A dependency can be added to the latest step alone.
  const bool latest = receive + 1 == schedule_.steps.size();
  if (average_slots_.size() >= kAverageSlots && latest) {
    AverageSlot& slot = average_slots_[next_average_slot_++ % kAverageSlots];
    if (slot.length >= length) {
      appended_ = true;
      AlsoAfter(slot.read);
      return slot;
    }
    slot = {Scratch(length), length, kNone};
    return slot;
  }
  average_slots_.push_back({Scratch(length), length, kNone});
  return average_slots_.back();
}

Place ScheduleBuilder::Scratch(uint64_t length) {
  // Stretches start at multiples of 64 elements: on cache lines, whatever the type.
  Place place{Buffer::kScratch, schedule_.scratch_length};
  schedule_.scratch_length += (length + 63) / 64 * 64;
  return place;
}

}  // namespace weft::collectives
