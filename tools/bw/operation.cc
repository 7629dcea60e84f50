#include "tools/bw/operation.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tools/bw/pattern.h"

namespace weft::bw {
namespace {

using collectives::CollectiveKind;
using collectives::Communicator;
using collectives::GroupRank;
using collectives::WorkPtr;

constexpr size_t kPageBytes = 4096;
constexpr uint32_t kTag = 0;

// clang-format off
constexpr OperationInfo kOperations[] = {
    // operation                name              per_rank in_place
    {Operation::kAllReduce,     "all_reduce",     false,   true,    CollectiveKind::kAllReduce},
    {Operation::kAllGather,     "all_gather",     true,    true,    CollectiveKind::kAllGather},
    {Operation::kReduceScatter, "reduce_scatter", true,    true,    CollectiveKind::kReduceScatter},
    {Operation::kBroadcast,     "broadcast",      false,   true,    CollectiveKind::kBroadcast},
    {Operation::kReduce,        "reduce",         false,   true,    CollectiveKind::kReduce},
    {Operation::kGather,        "gather",         true,    true,    CollectiveKind::kGather},
    {Operation::kScatter,       "scatter",        true,    true,    CollectiveKind::kScatter},
    {Operation::kAllToAll,      "all_to_all",     true,    false,   CollectiveKind::kAllToAll},
    {Operation::kAllGatherV,    "all_gather_v",   true,    true,    CollectiveKind::kAllGatherV},
    {Operation::kAllToAllV,     "all_to_all_v",   true,    false,   CollectiveKind::kAllToAllV},
    {Operation::kSendReceive,   "sendrecv",       false,   false,   std::nullopt},
    {Operation::kBarrier,       "barrier",        false,   false,   CollectiveKind::kBarrier},
};
// clang-format on

std::vector<int> Everybody(int ranks) {
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

absl::Span<const OperationInfo> Operations() { return kOperations; }

const OperationInfo& InfoOf(Operation operation) {
  return kOperations[static_cast<size_t>(operation)];
}

const OperationInfo* FindOperation(absl::string_view name) {
  for (const OperationInfo& info : kOperations) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

size_t CountFor(Operation operation, collectives::DataType type, Bytes size, int ranks) {
  if (operation == Operation::kBarrier) return 0;
  size_t elements = static_cast<size_t>(size.count()) / collectives::SizeOf(type);
  return InfoOf(operation).per_rank ? elements / static_cast<size_t>(ranks) : elements;
}

Parts PartsOf(const Case& what, int ranks) {
  Parts parts;
  parts.counts.assign(static_cast<size_t>(ranks), what.count);
  for (size_t r = 0; r < parts.counts.size(); ++r) parts.offsets.push_back(r * what.count);
  return parts;
}

Bytes SizeOf(const Case& what, int ranks) {
  size_t parts = InfoOf(what.operation).per_rank ? static_cast<size_t>(ranks) : 1;
  return Bytes(static_cast<int64_t>(what.count * parts * collectives::SizeOf(what.type)));
}

double BusFactor(Operation operation, int ranks) {
  double n = ranks;
  switch (operation) {
    case Operation::kAllReduce:
      return 2 * (n - 1) / n;
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kGather:
    case Operation::kScatter:
    case Operation::kAllToAll:
    case Operation::kAllGatherV:
    case Operation::kAllToAllV:
      return (n - 1) / n;
    case Operation::kBroadcast:
    case Operation::kReduce:
    case Operation::kSendReceive:
      return 1;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

namespace {

std::shared_ptr<std::byte> Heap(size_t bytes) {
  return {static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes)),
          [](std::byte* memory) { std::free(memory); }};
}

}  // namespace

absl::StatusOr<Buffers> Buffers::Allocate(Bytes size, int ranks, collectives::Endpoint* endpoint) {
  Buffers buffers;
  // Room for a part each, however small the size.
  size_t bytes = static_cast<size_t>(size.count()) + static_cast<size_t>(ranks) * sizeof(double);
  buffers.bytes_ = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  buffers.send_ = endpoint != nullptr ? endpoint->Allocate(buffers.bytes_) : Heap(buffers.bytes_);
  buffers.receive_ =
      endpoint != nullptr ? endpoint->Allocate(buffers.bytes_) : Heap(buffers.bytes_);
  if (buffers.send_ == nullptr || buffers.receive_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for two buffers of ", ToString(size)));
  }
  // Pages are there before anything is timed.
  std::memset(buffers.send_.get(), 0, buffers.bytes_);
  std::memset(buffers.receive_.get(), 0, buffers.bytes_);
  return buffers;
}

Buffers::View Buffers::ViewOf(const Case& what, int rank) const {
  if (!what.in_place) return {send_.get(), receive_.get()};
  size_t own_part = static_cast<size_t>(rank) * what.count * collectives::SizeOf(what.type);
  switch (what.operation) {
    case Operation::kAllGather:
    case Operation::kAllGatherV:
    case Operation::kGather:
      return {receive_.get() + own_part, receive_.get()};
    case Operation::kReduceScatter:
    case Operation::kScatter:
      return {send_.get(), send_.get() + own_part};
    default:
      return {send_.get(), send_.get()};
  }
}

void Buffers::Fill(const Case& what, int rank, int ranks) {
  constexpr int kPoison = 0x5A;
  size_t bytes = static_cast<size_t>(SizeOf(what, ranks).count());
  std::memset(send_.get(), kPoison, bytes);
  std::memset(receive_.get(), kPoison, bytes);
  bool whole_input =
      what.operation == Operation::kReduceScatter || what.operation == Operation::kScatter ||
      what.operation == Operation::kAllToAll || what.operation == Operation::kAllToAllV;
  size_t count = whole_input ? what.count * static_cast<size_t>(ranks) : what.count;
  Pattern(what.type, what.op, ranks).Write(ViewOf(what, rank).input, rank, count);
}

void Buffers::Start(const Case& what, Communicator& communicator, std::vector<WorkPtr>& works) {
  int rank = communicator.rank().value(), ranks = communicator.size();
  auto [input, output] = ViewOf(what, rank);
  GroupRank root(what.root);
  const bool counted =
      what.operation == Operation::kAllGatherV || what.operation == Operation::kAllToAllV;
  const Parts parts = counted ? PartsOf(what, ranks) : Parts();
  switch (what.operation) {
    case Operation::kAllReduce:
      works.push_back(communicator.AllReduce(input, output, what.count, what.type, what.op));
      return;
    case Operation::kAllGather:
      works.push_back(communicator.AllGather(input, output, what.count, what.type));
      return;
    case Operation::kReduceScatter:
      works.push_back(communicator.ReduceScatter(input, output, what.count, what.type, what.op));
      return;
    case Operation::kBroadcast:
      works.push_back(communicator.Broadcast(input, output, what.count, what.type, root));
      return;
    case Operation::kReduce:
      works.push_back(communicator.Reduce(input, output, what.count, what.type, what.op, root));
      return;
    case Operation::kGather:
      works.push_back(communicator.Gather(input, output, what.count, what.type, root));
      return;
    case Operation::kScatter:
      works.push_back(communicator.Scatter(input, output, what.count, what.type, root));
      return;
    case Operation::kAllToAll:
      works.push_back(communicator.AllToAll(input, output, what.count, what.type));
      return;
    case Operation::kAllGatherV:
      works.push_back(
          communicator.AllGatherV(input, output, parts.counts, parts.offsets, what.type));
      return;
    case Operation::kAllToAllV:
      works.push_back(communicator.AllToAllV(input, parts.counts, parts.offsets, output,
                                             parts.counts, parts.offsets, what.type, what.count));
      return;
    case Operation::kSendReceive: {
      size_t bytes = what.count * collectives::SizeOf(what.type);
      GroupRank next((rank + 1) % ranks), previous((rank + ranks - 1) % ranks);
      works.push_back(communicator.Receive(output, bytes, previous, kTag));
      works.push_back(communicator.Send(input, bytes, next, kTag));
      return;
    }
    case Operation::kBarrier:
      works.push_back(communicator.Barrier());
      return;
  }
}

int64_t Buffers::Wrong(const Case& what, int rank, int ranks) const {
  Pattern pattern(what.type, what.op, ranks);
  const std::byte* output = ViewOf(what, rank).output;
  const size_t part_bytes = what.count * collectives::SizeOf(what.type);
  const size_t own = static_cast<size_t>(rank) * what.count;
  auto parts_from_all = [&](size_t first) {
    int64_t wrong = 0;
    for (int from = 0; from < ranks; ++from) {
      wrong +=
          pattern.Wrong(output + static_cast<size_t>(from) * part_bytes, {from}, first, what.count);
    }
    return wrong;
  };
  bool root = rank == what.root;
  switch (what.operation) {
    case Operation::kAllReduce:
      return pattern.Wrong(output, Everybody(ranks), 0, what.count);
    case Operation::kReduce:
      return root ? pattern.Wrong(output, Everybody(ranks), 0, what.count) : 0;
    case Operation::kReduceScatter:
      return pattern.Wrong(output, Everybody(ranks), own, what.count);
    case Operation::kAllGather:
    case Operation::kAllGatherV:
      return parts_from_all(0);
    case Operation::kGather:
      return root ? parts_from_all(0) : 0;
    case Operation::kAllToAll:
    case Operation::kAllToAllV:
      return parts_from_all(own);
    case Operation::kBroadcast:
      return pattern.Wrong(output, {what.root}, 0, what.count);
    case Operation::kScatter:
      return pattern.Wrong(output, {what.root}, own, what.count);
    case Operation::kSendReceive:
      return pattern.Wrong(output, {(rank + ranks - 1) % ranks}, 0, what.count);
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

}  // namespace weft::bw
