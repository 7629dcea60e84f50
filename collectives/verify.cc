#include "collectives/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/verify_memory.h"

namespace weft::collectives {
namespace {

using verify::Contents;
using verify::Memory;
using verify::Reduce;
using verify::Stretch;
using verify::Stretches;

template <typename... Parts>
absl::Status Fault(int rank, const Parts&... parts) {
  return absl::InternalError(absl::StrCat("schedule of rank ", rank, ": ", parts...));
}

// ---- One rank

constexpr int kSpaces = 3;

struct Access {
  int space;
  int64_t begin, end;
  bool writes;
  uint32_t step;
};

class RankState {
 public:
  RankState(const CollectiveSpec& spec, const RankSchedule& schedule)
      : spec_(spec), schedule_(schedule), complete_(schedule.steps.size()) {
    Contents own{.times = std::vector<int>(static_cast<size_t>(spec.size), 0)};
    own.times[static_cast<size_t>(spec.rank)] = 1;
    const auto [space, begin] = Locate({Buffer::kInput, 0});
    memory_[space].Write(begin, {{static_cast<int64_t>(InputLength(spec)), true, own, 0}});
    for (uint32_t id = 0; id < schedule.steps.size(); ++id) {
      const Step& step = schedule.steps[id];
      if (step.kind == StepKind::kSend) sends_[step.peer].push_back(id);
      if (step.kind == StepKind::kReceive || step.kind == StepKind::kReceiveReduce) {
        receives_[step.peer].push_back(id);
      }
    }
    heard_.assign(schedule.steps.size(), {spec.rank});
  }

  // Everything that needs no other rank.
  absl::Status CheckAlone() const {
    for (uint32_t id = 0; id < schedule_.steps.size(); ++id) {
      const Step& step = schedule_.steps[id];
      for (uint32_t before : schedule_.After(step)) {
        if (before >= id) return Fault(spec_.rank, "step ", id, " is after step ", before);
      }
      const bool message = step.kind <= StepKind::kReceiveReduce;
      if (message && (step.peer < 0 || step.peer >= spec_.size || step.peer == spec_.rank)) {
        return Fault(spec_.rank, "step ", id, " has peer ", step.peer);
      }
    }
    WEFT_RETURN_IF_ERROR(CheckBounds());
    return CheckOrder();
  }

  bool Ready(uint32_t id) const {
    for (uint32_t before : schedule_.After(schedule_.steps[id])) {
      if (!complete_[before]) return false;
    }
    return true;
  }

  // Runs local steps that may run. True if any did.
  bool RunLocal() {
    bool moved = false;
    for (uint32_t id = 0; id < schedule_.steps.size(); ++id) {
      const Step& step = schedule_.steps[id];
      if (complete_[id] || step.kind <= StepKind::kReceiveReduce || !Ready(id)) continue;
      Stretches value = ReadPlace(step.kind == StepKind::kScale ? step.out : step.left, step);
      if (step.kind == StepKind::kReduce) value = Reduce(value, ReadPlace(step.right, step));
      for (Place place : schedule_.More(step)) value = Reduce(value, ReadPlace(place, step));
      if (step.kind == StepKind::kScale || step.averages) {
        for (Stretch& part : value) {
          part.known = part.known && !part.contents.averaged;
          part.contents.averaged = true;
        }
      }
      WritePlace(step.out, value);
      Complete(id, {});
      moved = true;
    }
    return moved;
  }

  // The id of the next message to or from a peer, if it is posted; else kNone.
  uint32_t PostedSend(int peer) const { return Posted(sends_, sends_done_, peer); }
  uint32_t PostedReceive(int peer) const { return Posted(receives_, receives_done_, peer); }

  Stretches Give(uint32_t id, std::set<int>* heard) {
    const Step& step = schedule_.steps[id];
    ++sends_done_[step.peer];
    Complete(id, {});
    *heard = heard_[id];
    return ReadPlace(step.left, step);
  }
  void Take(uint32_t id, Stretches value, const std::set<int>& heard) {
    const Step& step = schedule_.steps[id];
    ++receives_done_[step.peer];
    if (step.kind == StepKind::kReceiveReduce) value = Reduce(ReadPlace(step.left, step), value);
    WritePlace(step.out, value);
    Complete(id, heard);
  }

  absl::Status CheckDone() const {
    for (uint32_t id = 0; id < complete_.size(); ++id) {
      if (complete_[id]) continue;
      return Fault(spec_.rank, "deadlock: step ", id, " (", ToString(schedule_.steps[id].kind),
                   ", peer ", schedule_.steps[id].peer, ") never completes");
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutput(const std::vector<CollectiveSpec>& specs) const;
  uint64_t LengthOf(uint32_t id) const { return schedule_.steps[id].length; }

 private:
  using Channels = std::map<int, std::vector<uint32_t>>;

  std::pair<int, int64_t> Locate(Place place) const {
    const int64_t offset = static_cast<int64_t>(place.offset);
    if (spec_.in_place && place.buffer == Buffer::kInput) {
      return {static_cast<int>(Buffer::kOutput), offset + InputShift(spec_)};
    }
    return {static_cast<int>(place.buffer), offset};
  }
  Stretches ReadPlace(Place place, const Step& step) const {
    const auto [space, begin] = Locate(place);
    return memory_[space].Read(begin, static_cast<int64_t>(step.length));
  }
  void WritePlace(Place place, const Stretches& value) {
    const auto [space, begin] = Locate(place);
    memory_[space].Write(begin, value);
  }
  void Complete(uint32_t id, const std::set<int>& heard) {
    complete_[id] = true;
    heard_[id].insert(heard.begin(), heard.end());
    for (uint32_t before : schedule_.After(schedule_.steps[id])) {
      heard_[id].insert(heard_[before].begin(), heard_[before].end());
    }
  }
  uint32_t Posted(const Channels& channels, const std::map<int, size_t>& done, int peer) const {
    const auto channel = channels.find(peer);
    if (channel == channels.end()) return kNone;
    const auto count = done.find(peer);
    const size_t next = count == done.end() ? 0 : count->second;
    if (next >= channel->second.size()) return kNone;
    const uint32_t id = channel->second[next];
    return Ready(id) ? id : kNone;
  }

  std::vector<std::pair<Place, bool>> PlacesOf(const Step& step) const;  // and whether it writes
  absl::Status CheckBounds() const;
  absl::Status CheckOrder() const;

  const CollectiveSpec& spec_;
  const RankSchedule& schedule_;
  std::vector<bool> complete_;
  Memory memory_[kSpaces];
  Channels sends_, receives_;
  std::map<int, size_t> sends_done_, receives_done_;
  std::vector<std::set<int>> heard_;  // by step: ranks whose start precedes its end
};

std::vector<std::pair<Place, bool>> RankState::PlacesOf(const Step& step) const {
  switch (step.kind) {
    case StepKind::kSend:
      return {{step.left, false}};
    case StepKind::kReceive:
    case StepKind::kScale:
      return {{step.out, true}};
    case StepKind::kReceiveReduce:
    case StepKind::kCopy:
      return {{step.out, true}, {step.left, false}};
    case StepKind::kReduce:
      return {{step.out, true}, {step.left, false}, {step.right, false}};
    case StepKind::kReduceAll: {
      std::vector<std::pair<Place, bool>> places = {{step.out, true}, {step.left, false}};
      for (Place place : schedule_.More(step)) places.emplace_back(place, false);
      return places;
    }
  }
  return {};
}

absl::Status RankState::CheckBounds() const {
  const uint64_t limits[kSpaces] = {InputLength(spec_), OutputLength(spec_),
                                    schedule_.scratch_length};
  for (uint32_t id = 0; id < schedule_.steps.size(); ++id) {
    const Step& step = schedule_.steps[id];
    if (step.length == 0) continue;
    for (const auto& [place, writes] : PlacesOf(step)) {
      if (writes && place.buffer == Buffer::kInput) {
        return Fault(spec_.rank, "step ", id, " writes to the input");
      }
      const uint64_t limit = limits[static_cast<int>(place.buffer)];
      if (place.offset > limit || step.length > limit - place.offset) {
        return Fault(spec_.rank, "step ", id, " leaves its buffer of ", limit, " elements");
      }
    }
    const auto [out_space, out] = Locate(step.out);
    for (const auto& [place, writes] : PlacesOf(step)) {
      const auto [space, begin] = Locate(place);
      const int64_t length = static_cast<int64_t>(step.length);
      if (step.kind == StepKind::kSend || writes || space != out_space || begin == out) continue;
      if (begin < out + length && out < begin + length) {
        return Fault(spec_.rank, "step ", id, " reads what it overwrites, shifted");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status RankState::CheckOrder() const {
  const size_t count = schedule_.steps.size();
  const size_t words = (count + 63) / 64;
  std::vector<uint64_t> before(count * words, 0);  // [step, earlier step]: ordered by `after`
  std::vector<Access> accesses;
  for (uint32_t id = 0; id < count; ++id) {
    const Step& step = schedule_.steps[id];
    for (uint32_t earlier : schedule_.After(step)) {
      before[id * words + earlier / 64] |= uint64_t{1} << (earlier % 64);
      for (size_t w = 0; w < words; ++w) before[id * words + w] |= before[earlier * words + w];
    }
    if (step.length == 0) continue;
    for (const auto& [place, writes] : PlacesOf(step)) {
      const auto [space, begin] = Locate(place);
      accesses.push_back({space, begin, begin + static_cast<int64_t>(step.length), writes, id});
    }
  }
  std::sort(accesses.begin(), accesses.end(), [](const Access& a, const Access& b) {
    return std::tie(a.space, a.begin, a.step) < std::tie(b.space, b.begin, b.step);
  });
  for (size_t i = 0; i < accesses.size(); ++i) {
    const Access& a = accesses[i];
    for (size_t j = i + 1; j < accesses.size(); ++j) {
      const Access& b = accesses[j];
      if (b.space != a.space || b.begin >= a.end) break;
      if ((!a.writes && !b.writes) || a.step == b.step) continue;
      const uint32_t first = std::min(a.step, b.step), second = std::max(a.step, b.step);
      if (before[second * words + first / 64] >> (first % 64) & 1) continue;
      return Fault(spec_.rank, "steps ", first, " and ", second,
                   " touch the same elements in no order");
    }
  }
  return absl::OkStatus();
}

// ---- What the outputs should hold

struct Expected {
  uint64_t begin, length;
  int source;  // a rank, or -1: all of them, reduced
  uint64_t index;
};

std::vector<Expected> ExpectedOutput(const CollectiveSpec& spec,
                                     const std::vector<CollectiveSpec>& specs) {
  const uint64_t rank = static_cast<uint64_t>(spec.rank);
  const bool is_root = spec.rank == spec.root;
  std::vector<Expected> out;
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      return {{0, spec.count, -1, 0}};
    case CollectiveKind::kReduceScatter:
      return {{0, spec.count, -1, rank * spec.count}};
    case CollectiveKind::kReduce:
      if (is_root) out.push_back({0, spec.count, -1, 0});
      return out;
    case CollectiveKind::kBroadcast:
      return {{0, spec.count, spec.root, 0}};
    case CollectiveKind::kScatter:
      return {{0, spec.count, spec.root, rank * spec.count}};
    case CollectiveKind::kBarrier:
      return out;
    default:
      break;
  }
  if (spec.kind == CollectiveKind::kGather && !is_root) return out;
  for (int source = 0; source < spec.size; ++source) {
    const size_t s = static_cast<size_t>(source);
    switch (spec.kind) {
      case CollectiveKind::kAllToAll:
        out.push_back({s * spec.count, spec.count, source, rank * spec.count});
        break;
      case CollectiveKind::kAllGatherV:
        out.push_back({spec.output_offsets[s], spec.output_counts[s], source, 0});
        break;
      case CollectiveKind::kAllToAllV:
        out.push_back(
            {spec.output_offsets[s], spec.output_counts[s], source, specs[s].input_offsets[rank]});
        break;
      default:
        out.push_back({s * spec.count, spec.count, source, 0});
    }
  }
  return out;
}

absl::Status RankState::CheckOutput(const std::vector<CollectiveSpec>& specs) const {
  for (const Expected& expected : ExpectedOutput(spec_, specs)) {
    Contents wanted{.times = std::vector<int>(static_cast<size_t>(spec_.size), 0)};
    if (expected.source >= 0) {
      wanted.times[static_cast<size_t>(expected.source)] = 1;
    } else {
      wanted.times.assign(wanted.times.size(), 1);
      wanted.averaged = spec_.average && spec_.size > 1;
    }
    int64_t at = static_cast<int64_t>(expected.begin);
    const Memory& output = memory_[static_cast<int>(Buffer::kOutput)];
    for (const Stretch& part : output.Read(at, static_cast<int64_t>(expected.length))) {
      const int64_t index =
          static_cast<int64_t>(expected.index) + at - static_cast<int64_t>(expected.begin);
      if (!part.known || part.contents != wanted || part.index != index) {
        return Fault(spec_.rank, "output [", at, ",", at + part.length, ") holds ",
                     part.known ? ToText(part.contents) : "nothing", " of element ",
                     part.known ? part.index : -1, ", not ", ToText(wanted), " of ", index);
      }
      at += part.length;
    }
  }
  if (spec_.kind == CollectiveKind::kBarrier) {
    std::set<int> heard{spec_.rank};
    for (const auto& ranks : heard_) heard.insert(ranks.begin(), ranks.end());
    if (static_cast<int>(heard.size()) != spec_.size) {
      return Fault(spec_.rank, "leaves the barrier having heard of ", heard.size(), " ranks");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifySchedules(const std::vector<CollectiveSpec>& specs,
                             const std::vector<RankSchedule>& schedules) {
  const int n = static_cast<int>(specs.size());
  std::vector<RankState> ranks;
  ranks.reserve(specs.size());
  for (size_t r = 0; r < specs.size(); ++r) {
    ranks.emplace_back(specs[r], schedules[r]);
    WEFT_RETURN_IF_ERROR(ranks.back().CheckAlone());
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (RankState& rank : ranks) moved |= rank.RunLocal();
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        const uint32_t send = ranks[a].PostedSend(b), receive = ranks[b].PostedReceive(a);
        if (send == kNone || receive == kNone) continue;
        if (ranks[a].LengthOf(send) != ranks[b].LengthOf(receive)) {
          return Fault(a, "step ", send, " sends ", ranks[a].LengthOf(send),
                       " elements where step ", receive, " of rank ", b, " takes ",
                       ranks[b].LengthOf(receive));
        }
        std::set<int> heard;
        Stretches value = ranks[a].Give(send, &heard);
        ranks[b].Take(receive, std::move(value), heard);
        moved = true;
      }
    }
  }
  for (const RankState& rank : ranks) WEFT_RETURN_IF_ERROR(rank.CheckDone());
  for (const RankState& rank : ranks) WEFT_RETURN_IF_ERROR(rank.CheckOutput(specs));
  return absl::OkStatus();
}

}  // namespace weft::collectives
