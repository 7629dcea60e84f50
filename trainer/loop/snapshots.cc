#include "trainer/loop/snapshots.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/device/side_stream.h"

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
// states, with the loss scale in hex, a '/', the rank that it keeps a copy for, or -1, a '/', and
// the same of that one's states.
struct Holdings {
  std::vector<RunPosition> own, other;
  int kept_for = -1;
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
  return parts.size() == 3 && ParsePositions(parts[0], out.own) &&
         absl::SimpleAtoi(parts[1], &out.kept_for) && ParsePositions(parts[2], out.other);
}

// The rank that has a copy of the state of `rank` after `step`; -1: none.
int HolderOf(const std::vector<Holdings>& ranks, size_t rank, int64_t step) {
  for (size_t holder = 0; holder < ranks.size(); ++holder) {
    if (ranks[holder].kept_for == static_cast<int>(rank) && Holds(ranks[holder].other, step)) {
      return static_cast<int>(holder);
    }
  }
  return -1;
}

// The newest position that every rank, or else another for it, holds the state of.
std::optional<RunPosition> NewestCommon(const std::vector<Holdings>& ranks) {
  std::optional<RunPosition> best;
  for (const Holdings& any : ranks) {
    for (const RunPosition& candidate : any.own) {
      bool everywhere = !best.has_value() || candidate.step > best->step;
      for (size_t rank = 0; everywhere && rank < ranks.size(); ++rank) {
        everywhere =
            Holds(ranks[rank].own, candidate.step) || HolderOf(ranks, rank, candidate.step) >= 0;
      }
      if (everywhere) best = candidate;
    }
  }
  return best;
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

absl::Status Snapshots::Prepare(const ParameterSets& parameters, ParallelGroups& groups) {
  Group& world = *groups.world;
  const int64_t own_bytes = BytesIn(StateOf(parameters));
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> sizes, world.Gather(absl::StrCat(own_bytes)));
  std::vector<int> hosts = groups.hosts;
  hosts.resize(sizes.size());  // of a job of one rank
  const std::vector<int> keepers = SnapshotKeepers(hosts);
  keeper_ = keepers[static_cast<size_t>(world.rank())];
  const auto ward = std::find(keepers.begin(), keepers.end(), world.rank()) - keepers.begin();
  if (kept_for_ != static_cast<int>(ward)) {
    for (Pair& pair : pairs_) pair.other.position.step = -1;
  }
  kept_for_ = static_cast<int>(ward);
  int64_t other_bytes = 0;
  if (!absl::SimpleAtoi(sizes[static_cast<size_t>(ward)], &other_bytes) || other_bytes < 0) {
    return absl::InternalError(absl::StrCat("rank ", ward, " says that its state has '",
                                            sizes[static_cast<size_t>(ward)], "' bytes"));
  }
  for (Pair& pair : pairs_) {
    Allocate(own_bytes, DeviceOf(parameters), pair.own.state);
    Allocate(keeper_ == world.rank() ? 0 : other_bytes, at::kCPU, pair.other.state);
  }
  return absl::OkStatus();
}

absl::Status Snapshots::Exchange(Pair& pair, Group& group, bool sends, bool receives) const {
  if (keeper_ == group.rank()) return absl::OkStatus();
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
  if (keeper_ < 0) WEFT_RETURN_IF_ERROR(Prepare(parameters, groups));
  Pair& pair = PairFor(position.step);
  pair.own.position.step = pair.other.position.step = -1;
  copying_ = StartUnbound([this, position, &pair, &parameters, &group = *groups.snapshots,
                           beside = SideStream(DeviceOf(parameters))]() mutable {
    if (before_copy_) before_copy_();
    beside.Run([&] { Pack(StateOf(parameters), pair.own.state); });
    pair.own.position = position;
    return Exchange(pair, group, /*sends=*/true, /*receives=*/true);
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
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts,
                        world.Gather(absl::StrCat(own, "/", kept_for_, "/", other)));
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
  // A rank that has no state of that step gets it from the one that kept it.
  Pending send, receive;
  const int kept_for = ranks[mine].kept_for;
  if (kept_for >= 0 && !Holds(ranks[static_cast<size_t>(kept_for)].own, step) &&
      HolderOf(ranks, static_cast<size_t>(kept_for), step) == world.rank()) {
    WEFT_ASSIGN_OR_RETURN(send, world.Send(pair.other.state, kept_for, kRestoreTag));
  }
  if (!Holds(ranks[mine].own, step)) {
    Allocate(BytesIn(StateOf(parameters)), DeviceOf(parameters), pair.own.state);
    WEFT_ASSIGN_OR_RETURN(receive,
                          world.Receive(pair.own.state, HolderOf(ranks, mine, step), kRestoreTag));
  }
  WEFT_RETURN_IF_ERROR(world.Wait(receive));
  WEFT_RETURN_IF_ERROR(world.Wait(send));
  pair.own.position = *common;
  Unpack(pair.own.state, StateOf(parameters));
  // Hosts may be others than before. Who has no copy of what it keeps now takes one.
  WEFT_RETURN_IF_ERROR(Prepare(parameters, groups));
  const Holdings& keeper = ranks[static_cast<size_t>(keeper_)];
  const bool has = pair.other.position.step == step;
  WEFT_RETURN_IF_ERROR(
      Exchange(pair, world, keeper.kept_for != world.rank() || !Holds(keeper.other, step), !has));
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
