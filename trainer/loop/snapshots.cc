#include "trainer/loop/snapshots.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft::train {
namespace {

// Tags of messages in the group of all ranks.
constexpr uint32_t kSnapshotTag = 0x534e4150;  // "SNAP"
constexpr uint32_t kRestoreTag = 0x524e4150;

int64_t BytesIn(const std::vector<absl::Span<std::byte>>& parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += part.size();
  return static_cast<int64_t>(bytes);
}

void Pack(const std::vector<absl::Span<std::byte>>& parts, at::Tensor& out) {
  auto* to = out.data_ptr<uint8_t>();
  for (const auto& part : parts) {
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  }
}

void Unpack(const at::Tensor& state, const std::vector<absl::Span<std::byte>>& parts) {
  const auto* from = state.data_ptr<uint8_t>();
  for (const auto& part : parts) {
    std::memcpy(part.data(), from, part.size());
    from += part.size();
  }
}

// Which steps a rank holds. As text: "STEP:SAMPLES:SCALE:GEMM:ATTENTION " for each of its own
// states, with the loss scale in hex, a '/', and the same of its neighbour's.
struct Holdings {
  std::vector<RunPosition> own, neighbour;
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

// The newest position that every rank, or else the rank after it, holds the state of.
std::optional<RunPosition> NewestCommon(const std::vector<Holdings>& ranks) {
  std::optional<RunPosition> best;
  for (const Holdings& any : ranks) {
    for (const RunPosition& candidate : any.own) {
      bool everywhere = !best.has_value() || candidate.step > best->step;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const Holdings& next = ranks[(rank + 1) % ranks.size()];
        everywhere = everywhere && (Holds(ranks[rank].own, candidate.step) ||
                                    Holds(next.neighbour, candidate.step));
      }
      if (everywhere) best = candidate;
    }
  }
  return best;
}

}  // namespace

absl::Status Snapshots::LearnSizes(const ParameterSets& parameters, Group& world) {
  own_bytes_ = BytesIn(StateOf(parameters));
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> sizes, world.Gather(absl::StrCat(own_bytes_)));
  const auto before = static_cast<size_t>((world.rank() + world.size() - 1) % world.size());
  if (!absl::SimpleAtoi(sizes[before], &neighbour_bytes_)) {
    return absl::InternalError(absl::StrCat("'", sizes[before], "' is no size of a state"));
  }
  for (Pair& pair : pairs_) {
    if (!pair.own.state.defined()) pair.own.state = at::empty({own_bytes_}, at::kByte);
    if (!pair.neighbour.state.defined()) {
      pair.neighbour.state = at::empty({neighbour_bytes_}, at::kByte);
    }
  }
  return absl::OkStatus();
}

absl::Status Snapshots::Take(const RunPosition& position, ParameterSets& parameters, Group& world) {
  if (neighbour_bytes_ < 0) WEFT_RETURN_IF_ERROR(LearnSizes(parameters, world));
  Pair& pair = PairFor(position.step);
  pair.own.position = pair.neighbour.position = RunPosition{.step = -1};
  Pack(StateOf(parameters), pair.own.state);
  pair.own.position = position;
  const int ranks = world.size(), rank = world.rank();
  WEFT_ASSIGN_OR_RETURN(Pending receive, world.Receive(pair.neighbour.state,
                                                       (rank + ranks - 1) % ranks, kSnapshotTag));
  WEFT_ASSIGN_OR_RETURN(Pending send, world.Send(pair.own.state, (rank + 1) % ranks, kSnapshotTag));
  WEFT_RETURN_IF_ERROR(world.Wait(receive));
  pair.neighbour.position = position;
  return world.Wait(send);
}

absl::StatusOr<std::optional<RunPosition>> Snapshots::Restore(ParameterSets& parameters,
                                                              Group& world) {
  std::string own, neighbour;
  for (const Pair& pair : pairs_) {
    AppendPosition(own, pair.own.position);
    AppendPosition(neighbour, pair.neighbour.position);
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts,
                        world.Gather(absl::StrCat(own, "/", neighbour)));
  std::vector<Holdings> ranks(texts.size());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::vector<std::string> parts = absl::StrSplit(texts[rank], '/');
    if (parts.size() != 2 || !ParsePositions(parts[0], ranks[rank].own) ||
        !ParsePositions(parts[1], ranks[rank].neighbour)) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " says that it holds '", texts[rank], "'"));
    }
  }
  // A rank that was started anew does not know them, and all must call alike.
  WEFT_RETURN_IF_ERROR(LearnSizes(parameters, world));
  const std::optional<RunPosition> common = NewestCommon(ranks);
  if (!common.has_value()) return common;
  Pair& pair = PairFor(common->step);
  // A rank that has no state of that step gets it from the rank after it.
  const int size = world.size(), before = (world.rank() + size - 1) % size;
  const bool gives = !Holds(ranks[static_cast<size_t>(before)].own, common->step);
  const bool takes = pair.own.position.step != common->step;
  Pending send, receive;
  if (gives) {
    WEFT_ASSIGN_OR_RETURN(send, world.Send(pair.neighbour.state, before, kRestoreTag));
  }
  if (takes) {
    WEFT_ASSIGN_OR_RETURN(receive,
                          world.Receive(pair.own.state, (world.rank() + 1) % size, kRestoreTag));
  }
  WEFT_RETURN_IF_ERROR(world.Wait(receive));
  WEFT_RETURN_IF_ERROR(world.Wait(send));
  pair.own.position = *common;
  Unpack(pair.own.state, StateOf(parameters));
  // Who has no copy of its neighbour's state of that step takes one.
  const size_t next = static_cast<size_t>((world.rank() + 1) % size);
  if (!Holds(ranks[next].neighbour, common->step)) {
    WEFT_ASSIGN_OR_RETURN(send, world.Send(pair.own.state, static_cast<int>(next), kSnapshotTag));
  }
  if (pair.neighbour.position.step != common->step) {
    WEFT_ASSIGN_OR_RETURN(receive, world.Receive(pair.neighbour.state, before, kSnapshotTag));
  }
  WEFT_RETURN_IF_ERROR(world.Wait(receive));
  WEFT_RETURN_IF_ERROR(world.Wait(send));
  pair.neighbour.position = *common;
  return common;
}

Bytes Snapshots::bytes() const {
  int64_t bytes = 0;
  for (const Pair& pair : pairs_) {
    for (const at::Tensor& state : {pair.own.state, pair.neighbour.state}) {
      if (state.defined()) bytes += static_cast<int64_t>(state.nbytes());
    }
  }
  return Bytes(bytes);
}

}  // namespace weft::train
