#include "trainer/checkpoint/read_plan.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace weft::train {
namespace {

struct Tensor {
  int64_t elements = 0;
  std::vector<ReadPiece> pieces;
};
using TensorsByShard = std::map<int, Tensor>;

// One piece where it goes on where the one before ends.
void Append(const ReadPiece& piece, std::vector<ReadPiece>& pieces) {
  if (!pieces.empty()) {
    ReadPiece& last = pieces.back();
    if (last.rank == piece.rank && last.need == piece.need && last.to + last.elements == piece.to &&
        last.from + last.elements == piece.from) {
      last.elements += piece.elements;
      return;
    }
  }
  pieces.push_back(piece);
}

// `runs` by begin, without gap or overlap.
void AddNeed(const std::vector<BufferRun>& runs, const ElementRange& range, size_t rank,
             size_t need, TensorsByShard& tensors) {
  for (int64_t row = 0; row < range.count; ++row) {
    const int64_t begin = range.begin + row * range.stride, end = begin + range.length;
    auto run = std::partition_point(runs.begin(), runs.end(),
                                    [begin](const BufferRun& each) { return each.end <= begin; });
    for (int64_t at = begin; at < end && run != runs.end(); ++run) {
      const int64_t stop = std::min(end, run->end);
      Append({.rank = rank,
              .need = need,
              .to = row * range.length + at - begin,
              .from = run->at + at - run->begin,
              .elements = stop - at},
             tensors[run->shard].pieces);
      at = stop;
    }
  }
}

// Among the ranks that need most of a tensor, the one that has least to read so far.
size_t ChooseReader(const Tensor& tensor, const std::vector<int64_t>& loads,
                    const std::vector<bool>* holders) {
  std::vector<int64_t> needed(loads.size());
  for (const ReadPiece& piece : tensor.pieces) needed[piece.rank] += piece.elements;
  std::optional<size_t> best;
  for (size_t rank = 0; rank < loads.size(); ++rank) {
    if (holders != nullptr && !(*holders)[rank]) continue;
    if (!best || std::pair(-needed[rank], loads[rank]) < std::pair(-needed[*best], loads[*best])) {
      best = rank;
    }
  }
  return best.value_or(0);
}

// The parts of pieces that lie in the chunk.
void AddPieces(const Tensor& tensor, ReadChunk& chunk) {
  for (const ReadPiece& piece : tensor.pieces) {
    const int64_t begin = std::max(piece.from, chunk.begin);
    const int64_t end = std::min(piece.from + piece.elements, chunk.end);
    if (begin >= end) continue;
    chunk.pieces.push_back({.rank = piece.rank,
                            .need = piece.need,
                            .to = piece.to + begin - piece.from,
                            .from = begin,
                            .elements = end - begin});
  }
}

}  // namespace

ReadPlan PlanRead(const Manifest& manifest, const std::vector<std::vector<ReadNeed>>& needs,
                  int64_t round_bytes, const std::vector<std::vector<bool>>& holders) {
  ReadPlan plan;
  std::vector<TensorsByShard> tensors(manifest.buffers.size());
  std::vector<std::vector<BufferRun>> runs(manifest.buffers.size());
  for (size_t rank = 0; rank < needs.size(); ++rank) {
    for (size_t need = 0; need < needs[rank].size(); ++need) {
      const auto& [buffer, range] = needs[rank][need];
      if (runs[buffer].empty()) runs[buffer] = manifest.buffers[buffer].Runs();
      AddNeed(runs[buffer], range, rank, need, tensors[buffer]);
    }
  }
  std::vector<int64_t> loads(needs.size());
  std::vector<size_t> round(needs.size());      // of each reader: the last that has chunks of its
  std::vector<int64_t> in_round(needs.size());  // bytes there
  for (size_t buffer = 0; buffer < tensors.size(); ++buffer) {
    const BufferLayout& layout = manifest.buffers[buffer];
    const int64_t width = SizeOf(layout.dtype);
    const int64_t chunk_elements = std::max<int64_t>(1, round_bytes / width);
    for (const BufferSlice& slice : layout.slices) {
      if (auto found = tensors[buffer].find(slice.shard); found != tensors[buffer].end()) {
        found->second.elements =
            std::max(found->second.elements, slice.at + slice.range.elements());
      }
    }
    for (const auto& [shard, tensor] : tensors[buffer]) {
      const size_t reader = ChooseReader(
          tensor, loads, holders.empty() ? nullptr : &holders[static_cast<size_t>(shard)]);
      loads[reader] += tensor.elements * width;
      plan.read_bytes += tensor.elements * width;
      for (int64_t begin = 0; begin < tensor.elements; begin += chunk_elements) {
        ReadChunk chunk{.reader = reader, .shard = shard, .buffer = buffer, .begin = begin};
        chunk.end = std::min(tensor.elements, begin + chunk_elements);
        chunk.tensor_elements = tensor.elements;
        AddPieces(tensor, chunk);
        for (const ReadPiece& piece : chunk.pieces) {
          plan.needed_bytes += piece.elements * width;
          if (piece.rank != reader) plan.passed_bytes += piece.elements * width;
        }
        const int64_t bytes = (chunk.end - chunk.begin) * width;
        if (in_round[reader] > 0 && in_round[reader] + bytes > round_bytes) {
          ++round[reader];
          in_round[reader] = 0;
        }
        in_round[reader] += bytes;
        if (plan.rounds.size() <= round[reader]) plan.rounds.resize(round[reader] + 1);
        plan.rounds[round[reader]].push_back(std::move(chunk));
      }
    }
  }
  for (std::vector<ReadChunk>& chunks : plan.rounds) {
    std::stable_sort(chunks.begin(), chunks.end(),
                     [](const ReadChunk& a, const ReadChunk& b) { return a.reader < b.reader; });
  }
  return plan;
}

}  // namespace weft::train
