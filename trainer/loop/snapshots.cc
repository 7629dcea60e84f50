#include "trainer/loop/snapshots.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/device/side_stream.h"
#include "trainer/groups/status_error.h"

namespace weft::train {
namespace {

// Tags of messages in the group of all ranks.
constexpr uint32_t kSnapshotTag = 0x534e4150;  // "SNAP"
constexpr uint32_t kRestoreTag = 0x524e4150;

int64_t BytesIn(const std::vector<at::Tensor>& parts) {
  int64_t bytes = 0;
  for (const at::Tensor& part : parts) bytes += part.numel();
  return bytes;
}

// By this thread alone where both are in host memory: LibTorch's copies take all cores.
void Copy(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_cpu() && to.is_cpu()) {
    std::memcpy(to.data_ptr(), from.data_ptr(), from.nbytes());
  } else {
    to.copy_(from, /*non_blocking=*/from.is_cuda());
  }
}

// Calls body(part of `state`, part) for each, one part of `state` behind the other.
template <typename Body>
void ForParts(const at::Tensor& state, const std::vector<at::Tensor>& parts, Body body) {
  int64_t at = 0;
  for (const at::Tensor& part : parts) {
    body(state.narrow(0, at, part.numel()), part);
    at += part.numel();
  }
}

void Pack(const std::vector<at::Tensor>& parts, const at::Tensor& out) {
  ForParts(out, parts, [](const at::Tensor& to, const at::Tensor& part) { Copy(part, to); });
}

void Unpack(const at::Tensor& state, const std::vector<at::Tensor>& parts) {
  ForParts(state, parts, [](const at::Tensor& from, const at::Tensor& part) { Copy(from, part); });
}

// Which steps a rank holds. As text: "STEP:SAMPLES:SCALE:GEMM:ATTENTION " for each of its own
// states, with the loss scale in hex, a '/', the rank that it keeps a copy for, or -1, a '/', the
// same of that one's states, a '/', and what its state is (NameOfState).
struct Holdings {
  std::vector<RunPosition> own, other;
  int kept_for = -1;
  std::string state;
};

void AppendPosition(std::string& text, const RunPosition& position) {
  if (position.step < 0) return;
  absl::StrAppend(&text, position.step, ":", position.samples, ":",
                  absl::BytesToHexString(position.loss_scale), ":", position.gemm, ":",
                  position.attention, " ");
}

bool ParsePositions(absl::string_view text, std::vector<RunPosition>& out) {
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(word, ':');
    RunPosition position;
    if (parts.size() != 5 || !absl::SimpleAtoi(parts[0], &position.step) ||
        !absl::SimpleAtoi(parts[1], &position.samples)) {
      return false;
    }
    position.loss_scale = absl::HexStringToBytes(parts[2]);
    position.gemm = parts[3];
    position.attention = parts[4];
    out.push_back(position);
  }
  return true;
}

bool Holds(const std::vector<RunPosition>& positions, int64_t step) {
  return std::any_of(positions.begin(), positions.end(),
                     [step](const RunPosition& each) { return each.step == step; });
}

bool Parse(const std::string& text, Holdings& out) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  if (parts.size() != 4) return false;
  out.state = parts[3];
  return ParsePositions(parts[0], out.own) && absl::SimpleAtoi(parts[1], &out.kept_for) &&
         ParsePositions(parts[2], out.other);
}

// Where the state of a rank after some step is, but for the rank itself.
struct Source {
  int rank = -1;        // -1: nowhere
  bool is_own = false;  // a replica's own state; else the copy that the rank keeps
};
Source SourceOf(const std::vector<Holdings>& ranks, size_t rank, int64_t step) {
  for (size_t other = 0; other < ranks.size(); ++other) {
    if (other == rank) continue;
    const Holdings& has = ranks[other];
    if (has.kept_for == static_cast<int>(rank) && Holds(has.other, step)) {
      return {static_cast<int>(other), false};
    }
    if (has.state == ranks[rank].state && Holds(has.own, step)) {
      return {static_cast<int>(other), true};
    }
  }
  return {};
}

// The newest position that every rank, or else another for it, holds the state of.
std::optional<RunPosition> NewestCommon(const std::vector<Holdings>& ranks) {
  std::optional<RunPosition> best;
  for (const Holdings& any : ranks) {
    for (const RunPosition& candidate : any.own) {
      bool everywhere = !best.has_value() || candidate.step > best->step;
      for (size_t rank = 0; everywhere && rank < ranks.size(); ++rank) {
        everywhere = Holds(ranks[rank].own, candidate.step) ||
                     SourceOf(ranks, rank, candidate.step).rank >= 0;
      }
      if (everywhere) best = candidate;
    }
  }
  return best;
}

// The same for ranks whose state is the same to the bit: data-parallel replicas. Experts are on
// other ranks than the rest of a replica.
std::string NameOfState(const ParallelGroups& groups) {
  if (groups.replicas == nullptr || groups.experts != nullptr) {
    return absl::StrCat("rank ", groups.world->rank());
  }
  return absl::StrCat("stage ", groups.pipeline->rank(), " tensor ", groups.tensor->rank(),
                      " shard ", groups.shard_group().rank());
}

// Pinned where it is filled from a GPU.
void Allocate(int64_t bytes, at::Device device, at::Tensor& state) {
  if (state.defined() && state.numel() == bytes) return;
  state = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda()));
}

}  // namespace

std::vector<int> SnapshotKeepers(const std::vector<int>& hosts) {
  const size_t ranks = hosts.size();
  std::vector<int> order(ranks);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return hosts[static_cast<size_t>(a)] < hosts[static_cast<size_t>(b)];
  });
  std::map<int, size_t> sizes;
  size_t shift = 1;
  for (const int host : hosts) shift = std::max(shift, ++sizes[host]);
  // In this order a host's ranks stand together, so as many places on there is another host's.
  if (sizes.size() == 1) shift = 1;
  std::vector<int> keepers(ranks);
  for (size_t i = 0; i < ranks; ++i) {
    keepers[static_cast<size_t>(order[i])] = order[(i + shift) % ranks];
  }
  return keepers;
}

std::vector<bool> NeedKeepers(const std::vector<std::string>& states,
                              const std::vector<int>& hosts) {
  const bool is_one_host = std::set<int>(hosts.begin(), hosts.end()).size() == 1;
  std::map<std::string, std::vector<size_t>> holders;
  for (size_t rank = 0; rank < states.size(); ++rank) holders[states[rank]].push_back(rank);
  std::vector<bool> needs(states.size());
  for (size_t rank = 0; rank < states.size(); ++rank) {
    const std::vector<size_t>& alike = holders[states[rank]];
    needs[rank] = std::none_of(alike.begin(), alike.end(), [&](size_t other) {
      return other != rank && (is_one_host || hosts[other] != hosts[rank]);
    });
  }
  return needs;
}

absl::Status Snapshots::Prepare(const ParameterSets& parameters, ParallelGroups& groups) {
  Group& world = *groups.world;
  const auto mine = static_cast<size_t>(world.rank());
  const int64_t own_bytes = BytesIn(StateOf(parameters));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        world.Gather(absl::StrCat(own_bytes, " ", NameOfState(groups))));
  std::vector<int64_t> sizes(texts.size());
  std::vector<std::string> states(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(texts[rank], absl::MaxSplits(' ', 1));
    if (!absl::SimpleAtoi(parts.first, &sizes[rank]) || sizes[rank] < 0) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " says of its state, size and name: '", texts[rank], "'"));
    }
    states[rank] = parts.second;
  }
  std::vector<int> hosts = groups.hosts;
  hosts.resize(sizes.size());  // of a job of one rank
  const std::vector<int> keepers = SnapshotKeepers(hosts);
  const std::vector<bool> needs = NeedKeepers(states, hosts);
  const auto ward = static_cast<size_t>(std::find(keepers.begin(), keepers.end(), world.rank()) -
                                        keepers.begin());
  keeper_ = keepers[mine];
  sends_ = keeper_ != world.rank() && needs[mine];
  const int kept_for = keeper_ != world.rank() && needs[ward] ? static_cast<int>(ward) : -1;
  for (Pair& pair : pairs_) {
    if (kept_for != kept_for_) pair.other.position.step = -1;  // of another rank, or of none
    Allocate(own_bytes, DeviceOf(parameters), pair.own.state);
    Allocate(kept_for < 0 ? 0 : sizes[ward], at::kCPU, pair.other.state);
  }
  kept_for_ = kept_for;
  is_prepared_ = true;
  return absl::OkStatus();
}

absl::Status Snapshots::Exchange(Pair& pair, Group& group, bool sends, bool receives) const {
  Pending send, receive;
  if (receives) {
    WEFT_ASSIGN_OR_RETURN(receive, group.Receive(pair.other.state, kept_for_, kSnapshotTag));
  }
  if (sends) {
    WEFT_ASSIGN_OR_RETURN(send, group.Send(pair.own.state, keeper_, kSnapshotTag));
  }
  WEFT_RETURN_IF_ERROR(group.Wait(receive));
  if (receives) pair.other.position = pair.own.position;
  return group.Wait(send);
}

absl::Status Snapshots::Begin(const RunPosition& position, ParameterSets& parameters,
                              ParallelGroups& groups) {
  WEFT_RETURN_IF_ERROR(Finish());
  if (!is_prepared_) WEFT_RETURN_IF_ERROR(Prepare(parameters, groups));
  Pair& pair = PairFor(position.step);
  pair.own.position.step = pair.other.position.step = -1;
  copying_ = StartUnbound([this, position, &pair, &parameters, &group = *groups.snapshots,
                           beside = SideStream(DeviceOf(parameters))]() mutable {
    return Guarded([&] {
      if (before_copy_) before_copy_();
      beside.Run([&] { Pack(StateOf(parameters), pair.own.state); });
      pair.own.position = position;
      return Exchange(pair, group, sends_, kept_for_ >= 0);
    });
  });
  return absl::OkStatus();
}

absl::Status Snapshots::Finish() { return copying_.valid() ? copying_.get() : absl::OkStatus(); }

absl::StatusOr<std::optional<RunPosition>> Snapshots::Restore(ParameterSets& parameters,
                                                              ParallelGroups& groups) {
  Group& world = *groups.world;
  std::string own, other;
  for (const Pair& pair : pairs_) {
    AppendPosition(own, pair.own.position);
    AppendPosition(other, pair.other.position);
  }
  WEFT_ASSIGN_OR_RETURN(
      std::vector<std::string> texts,
      world.Gather(absl::StrCat(own, "/", kept_for_, "/", other, "/", NameOfState(groups))));
  std::vector<Holdings> ranks(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (!Parse(texts[rank], ranks[rank])) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " says that it holds '", texts[rank], "'"));
    }
  }
  const std::optional<RunPosition> common = NewestCommon(ranks);
  if (!common.has_value()) {
    // A rank that was started anew has not, and all must call alike.
    WEFT_RETURN_IF_ERROR(Prepare(parameters, groups));
    return common;
  }
  const int64_t step = common->step;
  const auto mine = static_cast<size_t>(world.rank());
  Pair& pair = PairFor(step);
  // A rank that has no state of that step gets it from one that has.
  std::vector<Pending> sends;
  Pending receive;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (Holds(ranks[rank].own, step)) continue;
    const Source source = SourceOf(ranks, rank, step);
    if (source.rank == world.rank()) {
      const at::Tensor& state = source.is_own ? pair.own.state : pair.other.state;
      WEFT_ASSIGN_OR_RETURN(sends.emplace_back(),
                            world.Send(state, static_cast<int>(rank), kRestoreTag));
    }
    if (rank == mine) {
      Allocate(BytesIn(StateOf(parameters)), DeviceOf(parameters), pair.own.state);
      WEFT_ASSIGN_OR_RETURN(receive, world.Receive(pair.own.state, source.rank, kRestoreTag));
    }
  }
  WEFT_RETURN_IF_ERROR(world.Wait(receive));
  for (Pending& send : sends) WEFT_RETURN_IF_ERROR(world.Wait(send));
  pair.own.position = *common;
  Unpack(pair.own.state, StateOf(parameters));
  // Hosts may be others than before. Who has no copy of what it keeps now takes one.
  WEFT_RETURN_IF_ERROR(Prepare(parameters, groups));
  const Holdings& keeper = ranks[static_cast<size_t>(keeper_)];
  const bool keeper_has = keeper.kept_for == world.rank() && Holds(keeper.other, step);
  const bool has = pair.other.position.step == step;
  WEFT_RETURN_IF_ERROR(Exchange(pair, world, sends_ && !keeper_has, kept_for_ >= 0 && !has));
  return common;
}

Bytes Snapshots::bytes() const {
  int64_t bytes = 0;
  for (const Pair& pair : pairs_) {
    for (const at::Tensor& state : {pair.own.state, pair.other.state}) {
      if (state.defined()) bytes += static_cast<int64_t>(state.nbytes());
    }
  }
  return Bytes(bytes);
}

}  // namespace weft::train
