#include "collectives/executor.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/shm/shared_memory.h"

namespace weft::collectives {
namespace {

bool IsMessage(StepKind kind) {
  return kind == StepKind::kSend || kind == StepKind::kReceive || kind == StepKind::kReceiveReduce;
}

// From the last step on: what is touched in the output by those behind it. Stretches that touch
// are joined, as the chunks of a pass are.
std::vector<bool> FindEnds(const RankSchedule& schedule) {
  std::vector<bool> ends(schedule.steps.size());
  std::map<uint64_t, uint64_t> touched;  // begin to end, apart from each other
  const auto is_touched = [&](uint64_t begin, uint64_t end) {
    const auto next = touched.lower_bound(end);
    return next != touched.begin() && std::prev(next)->second > begin;
  };
  const auto touch = [&](uint64_t begin, uint64_t end) {
    auto at = touched.upper_bound(begin);
    if (at != touched.begin() && std::prev(at)->second >= begin) --at;
    while (at != touched.end() && at->first <= end) {
      begin = std::min(begin, at->first), end = std::max(end, at->second);
      at = touched.erase(at);
    }
    touched[begin] = end;
  };
  for (size_t i = schedule.steps.size(); i-- > 0;) {
    const Step& step = schedule.steps[i];
    const uint64_t begin = step.out.offset, end = begin + step.length;
    const bool writes = step.kind != StepKind::kSend && step.out.buffer == Buffer::kOutput;
    if (step.kind == StepKind::kReceiveReduce || step.kind == StepKind::kReduce) {
      ends[i] = writes && !is_touched(begin, end);
    }
    if (step.length == 0) continue;
    if (writes) touch(begin, end);
    const auto read = [&](Place place) {
      if (place.buffer == Buffer::kOutput) touch(place.offset, place.offset + step.length);
    };
    const bool reads_left = step.kind != StepKind::kReceive && step.kind != StepKind::kScale;
    if (reads_left) read(step.left);
    if (step.kind == StepKind::kReduce) read(step.right);
    for (Place place : schedule.More(step)) read(place);
  }
  return ends;
}

}  // namespace

Plan::Plan(RankSchedule built) : schedule(std::move(built)) {
  const size_t count = schedule.steps.size();
  waits.resize(count);
  next_begin.assign(count + 1, 0);
  for (uint32_t id = 0; id < count; ++id) {
    const Step& step = schedule.steps[id];
    waits[id] = step.after_count;
    for (uint32_t before : schedule.After(step)) ++next_begin[before + 1];
    if (!IsMessage(step.kind)) {
      if (step.after_count == 0) first.push_back(id);
      continue;
    }
    const bool sends = step.kind == StepKind::kSend;
    Channel* found = nullptr;
    for (Channel& channel : channels) {
      if (channel.peer == step.peer && channel.sends == sends) found = &channel;
    }
    if (found == nullptr) {
      channels.push_back({.peer = step.peer, .sends = sends});
      found = &channels.back();
    }
    found->steps.push_back(id);
  }
  ends = FindEnds(schedule);
  for (size_t id = 0; id < count; ++id) next_begin[id + 1] += next_begin[id];
  next.resize(next_begin[count]);
  std::vector<uint32_t> fill(next_begin.begin(), next_begin.end() - 1);
  for (uint32_t id = 0; id < count; ++id) {
    for (uint32_t before : schedule.After(schedule.steps[id])) next[fill[before]++] = id;
  }
}

void RunLocalStep(const RankSchedule& schedule, const Step& step, const Invocation& call,
                  net::ReduceFn reduce, absl::FunctionRef<std::byte*(Place)> at,
                  std::vector<const std::byte*>& operands) {
  const size_t bytes = step.length * call.element;
  std::byte* const out = at(step.out);
  switch (step.kind) {
    case StepKind::kCopy:
      if (const std::byte* left = at(step.left); left != out) std::memcpy(out, left, bytes);
      break;
    case StepKind::kReduce:
      reduce(out, at(step.left), at(step.right), bytes);
      break;
    case StepKind::kReduceAll:
      operands.assign(1, at(step.left));
      for (Place place : schedule.More(step)) operands.push_back(at(place));
      ReduceAll(call.reduce, call.reduce_all, out, operands, bytes,
                step.averages ? call.divisor : 1);
      break;
    case StepKind::kScale:
      call.scale(out, bytes, call.divisor);
      break;
    default:
      break;
  }
}

bool Execution::StreamsTo(uint32_t id) const {
  if (call_.stream == nullptr || !plan_->ends[id]) return false;
  const Step& step = plan_->schedule.steps[id];
  const std::byte* out = At(step.out);
  return out != At(step.left) && (step.kind != StepKind::kReduce || out != At(step.right));
}

Execution::Execution(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)),
      progress_(plan_->channels.size()),
      requests_(std::make_unique<net::Request[]>(plan_->schedule.steps.size())) {
  waits_.reserve(plan_->waits.size());
  ready_.reserve(plan_->waits.size());
  uint32_t operands = 0;
  for (const Step& step : plan_->schedule.steps) operands = std::max(operands, step.more_count);
  operands_.reserve(operands + 1);
}

void Execution::Begin(const Invocation& invocation, Peers& peers) {
  call_ = invocation;
  status_ = absl::OkStatus();
  failed_peer_ = -1;
  waits_ = plan_->waits;
  progress_.assign(plan_->channels.size(), {});
  left_ = static_cast<uint32_t>(plan_->schedule.steps.size());
  std::fill(std::begin(used_), std::end(used_), false);
  bool keeps = false;
  for (const Plan::Channel& channel : plan_->channels) {
    Peer& peer = *call_.group[static_cast<size_t>(channel.peer)];
    if (!std::exchange(used_[peer.transport], true)) {
      keeps |= peers.KeepsRegistrations(peer.transport);
    }
    // All links of the schedule come up at once, not each when the steps before it are done.
    if (channel.sends && peer.send == nullptr) peers.SendTo(peer);
  }
  const size_t scratch_bytes = plan_->schedule.scratch_length * call_.element;
  if (scratch_bytes_ < scratch_bytes) {
    if (keeps) {
      scratch_ = net::shm::AllocateMemory(scratch_bytes);
    } else {
      auto bytes = std::make_shared_for_overwrite<std::byte[]>(scratch_bytes);
      scratch_ = {bytes, bytes.get()};
    }
    scratch_bytes_ = scratch_ == nullptr ? 0 : scratch_bytes;
    if (scratch_ == nullptr) {
      return Fail(absl::ResourceExhaustedError(
                      absl::StrCat("no memory for ", scratch_bytes, " bytes between steps")),
                  -1);
    }
  }
  for (int t = 0; t < kTransportsMax; ++t) {
    if (!used_[t]) continue;
    if (absl::Status status = Register(t, peers); !status.ok()) return Fail(status, -1);
  }
  for (uint32_t id : plan_->first) RunLocal(id);
}

absl::Status Execution::Register(int transport, Peers& peers) {
  const std::pair<void*, size_t> buffers[3] = {
      {const_cast<void*>(call_.input), call_.input_length * call_.element},
      {call_.output, call_.output_length * call_.element},
      {scratch_.get(), plan_->schedule.scratch_length * call_.element}};
  // The longer one first: the other may be a part of it, which then costs nothing.
  const int longer = buffers[1].second >= buffers[0].second ? 1 : 0;
  for (int b : {longer, 1 - longer, 2}) {
    WEFT_ASSIGN_OR_RETURN(regions_[transport][b],
                          peers.Register(transport, buffers[b].first, buffers[b].second));
  }
  return absl::OkStatus();
}

void Execution::Rest() {
  for (int t = 0; t < kTransportsMax; ++t) {
    if (!used_[t]) continue;
    for (net::Region& region : regions_[t]) region = net::Region();
  }
}

std::byte* Execution::At(Place place) const {
  if (place.buffer != Buffer::kScratch) return call_.At(place);
  return scratch_.get() + place.offset * call_.element;
}

net::RegionView Execution::View(int transport, Place place, uint64_t length) {
  const net::Region& region = regions_[transport][static_cast<int>(place.buffer)];
  return region.view().Slice(place.offset * call_.element, length * call_.element);
}

void Execution::Fail(absl::Status status, int peer) {
  if (!status_.ok()) return;
  status_ = std::move(status);
  failed_peer_ = peer;
}

void Execution::Complete(uint32_t id) {
  --left_;
  for (uint32_t i = plan_->next_begin[id]; i < plan_->next_begin[id + 1]; ++i) {
    const uint32_t step = plan_->next[i];
    if (--waits_[step] == 0 && !IsMessage(plan_->schedule.steps[step].kind)) {
      ready_.push_back(step);
    }
  }
  while (!ready_.empty()) {
    const uint32_t step = ready_.back();
    ready_.pop_back();
    RunLocal(step);
  }
}

void Execution::RunLocal(uint32_t id) {
  RunLocalStep(
      plan_->schedule, plan_->schedule.steps[id], call_,
      StreamsTo(id) ? call_.stream : call_.reduce, [this](Place place) { return At(place); },
      operands_);
  Complete(id);
}

bool Execution::Post(const Plan::Channel& channel, const Step& step, uint32_t id, Peers& peers) {
  Peer& peer = *call_.group[static_cast<size_t>(channel.peer)];
  net::Request* request = &requests_[id];
  net::Posted posted = net::Posted::kNotYet;
  if (channel.sends) {
    net::SendLink* link = peers.SendTo(peer);
    if (link == nullptr) return false;
    // A result or part of one, which an earlier step wrote.
    const bool warm = step.after_count > 0 && step.left.buffer != Buffer::kInput;
    net::SendSource source(View(peer.transport, step.left, step.length), warm, call_.urgency);
    source.waits = call_.sends_wait;
    posted = link->PostSend(call_.key, source, request);
  } else {
    if (peer.receive == nullptr) return false;
    net::ReceiveTarget target{.out = View(peer.transport, step.out, step.length),
                              .sender_waits = call_.sends_wait};
    if (step.kind == StepKind::kReceiveReduce) {
      target.local = At(step.left);
      target.reduce = StreamsTo(id) ? call_.stream : call_.reduce;
    }
    posted = peer.receive->PostReceive(call_.key, target, request);
  }
  return posted == net::Posted::kAccepted;
}

bool Execution::Advance(Peers& peers, uint32_t window) {
  if (!status_.ok()) return false;
  const std::vector<Step>& steps = plan_->schedule.steps;
  bool moved = false;
  // Completions first: they free steps of every channel.
  for (size_t c = 0; c < progress_.size(); ++c) {
    const Plan::Channel& channel = plan_->channels[c];
    Progress& progress = progress_[c];
    while (progress.done < progress.posted) {
      const uint32_t id = channel.steps[progress.done];
      const net::Request& request = requests_[id];
      if (!request.done()) break;
      moved = true;
      ++progress.done;
      if (!request.status().ok()) {
        Fail(request.status(), channel.peer);
        return true;
      }
      const size_t expected = steps[id].length * call_.element;
      if (request.bytes() != expected) {
        Fail(absl::FailedPreconditionError(absl::StrCat(
                 "it sent ", request.bytes(), " bytes where ", expected, " were expected")),
             channel.peer);
        return true;
      }
      Complete(id);
    }
  }
  for (size_t c = 0; c < progress_.size(); ++c) {
    const Plan::Channel& channel = plan_->channels[c];
    Progress& progress = progress_[c];
    while (progress.posted < channel.steps.size() && progress.posted - progress.done < window) {
      const uint32_t id = channel.steps[progress.posted];
      if (waits_[id] != 0 || !Post(channel, steps[id], id, peers)) break;
      ++progress.posted;
      moved = true;
    }
  }
  return moved;
}

bool Execution::AwaitsLink() const {
  for (size_t c = 0; c < progress_.size(); ++c) {
    const Plan::Channel& channel = plan_->channels[c];
    if (progress_[c].done == channel.steps.size()) continue;
    if (!call_.group[static_cast<size_t>(channel.peer)]->HasLink(channel.sends)) return true;
  }
  return false;
}

bool Execution::AtRest() {
  for (const Plan::Channel& channel : plan_->channels) {
    if (Holds(channel.peer)) return false;
  }
  return true;
}

bool Execution::Holds(int peer) {
  for (size_t c = 0; c < progress_.size(); ++c) {
    const Plan::Channel& channel = plan_->channels[c];
    if (channel.peer != peer) continue;
    for (uint32_t i = progress_[c].done; i < progress_[c].posted; ++i) {
      if (!requests_[channel.steps[i]].done()) return true;
    }
  }
  return false;
}

PostedCount Execution::Posted(int peer) const {
  PostedCount count;
  for (size_t c = 0; c < progress_.size(); ++c) {
    const Plan::Channel& channel = plan_->channels[c];
    if (channel.peer != peer) continue;
    (channel.sends ? count.sends : count.receives) += progress_[c].posted;
  }
  return count;
}

bool Execution::Needs(int peer) const {
  for (size_t c = 0; c < progress_.size(); ++c) {
    const Plan::Channel& channel = plan_->channels[c];
    if (channel.peer == peer && progress_[c].done < channel.steps.size()) return true;
  }
  return false;
}

}  // namespace weft::collectives
