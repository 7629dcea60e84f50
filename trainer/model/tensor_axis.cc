#include "trainer/model/tensor_axis.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "trainer/groups/status_error.h"

namespace weft::train {

std::vector<int64_t> ChunkEdges(int64_t held, int most) {
  constexpr int64_t kLongest = 4;
  const int64_t chunks = std::clamp<int64_t>(most, 1, std::max<int64_t>(held, 1));
  std::vector<int64_t> edges = {0};
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    edges.push_back(edges.back() + std::min({chunk + 1, chunks - chunk, kLongest}));
  }
  // Where there are fewer rows than parts, chunks are about equally long.
  if (held < edges.back()) std::iota(edges.begin(), edges.end(), 0);
  const int64_t parts = edges.back();
  for (int64_t& edge : edges) edge = held * edge / parts;
  // The same from both ends: rounded down, the last chunk of a few rows might be twice the first.
  for (size_t i = 0; i < edges.size() / 2; ++i) edges[edges.size() - 1 - i] = held - edges[i];
  return edges;
}

at::Tensor TensorAxis::RowsHeld(int64_t rows) const {
  WEFT_CHECK(rows % size() == 0, rows << " rows over " << size() << " ranks");
  const std::vector<int64_t> edges = ChunkEdges(rows / size(), most_chunks_);
  std::vector<at::Tensor> chunks;
  for (size_t chunk = 0; chunk + 1 < edges.size(); ++chunk) {
    const int64_t held = edges[chunk + 1] - edges[chunk];
    const int64_t begin = edges[chunk] * size() + rank() * held;
    chunks.push_back(at::arange(begin, begin + held, at::kLong));
  }
  return at::cat(chunks);
}

TensorAxis::Exchange TensorAxis::Cut(at::Tensor full, at::Tensor held) const {
  Exchange exchange;
  exchange.begins = ChunkEdges(held.size(0), most_chunks_);
  for (int64_t& begin : exchange.begins) begin *= size();
  exchange.pending.resize(exchange.begins.size() - 1);
  exchange.full = std::move(full);
  exchange.held = std::move(held);
  return exchange;
}

at::Tensor TensorAxis::HeldChunk(const Exchange& exchange, size_t chunk) const {
  return exchange.held.narrow(0, exchange.begins[chunk] / size(), exchange.RowsOf(chunk) / size());
}

TensorAxis::Exchange TensorAxis::StartGather(const at::Tensor& held) const {
  Exchange exchange = Cut(at::empty({held.size(0) * size(), held.size(1)}, held.options()), held);
  for (size_t chunk = 0; chunk < exchange.chunks(); ++chunk) {
    exchange.pending[chunk] =
        ValueOrThrow(group_->AllGather(exchange.Chunk(chunk), HeldChunk(exchange, chunk)));
  }
  return exchange;
}

TensorAxis::Exchange TensorAxis::PrepareScatter(int64_t rows, int64_t width,
                                                const at::TensorOptions& options) const {
  WEFT_CHECK(rows % size() == 0, rows << " rows over " << size() << " ranks");
  return Cut(at::empty({rows, width}, options), at::empty({rows / size(), width}, options));
}

void TensorAxis::StartScatter(Exchange& exchange, size_t chunk) const {
  exchange.pending[chunk] =
      ValueOrThrow(group_->ReduceScatterSum(HeldChunk(exchange, chunk), exchange.Chunk(chunk)));
}

void TensorAxis::Wait(Exchange& exchange, size_t chunk) const {
  ThrowIfError(group_->Wait(exchange.pending[chunk]));
}

void TensorAxis::WaitAll(Exchange& exchange) const {
  for (size_t chunk = 0; chunk < exchange.chunks(); ++chunk) Wait(exchange, chunk);
}

}  // namespace weft::train
