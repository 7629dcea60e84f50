#include "trainer/model/tensor_axis.h"

#include <utility>

#include "base/status.h"
#include "trainer/groups/status_error.h"

namespace weft::train {

int TensorAxis::ChunksOf(int64_t rows) const {
  WEFT_CHECK(rows % size() == 0, rows << " rows over " << size() << " ranks");
  int chunks = most_chunks_;
  while (rows % (int64_t{size()} * chunks) != 0) --chunks;
  return chunks;
}

at::Tensor TensorAxis::RowsHeld(int64_t rows) const {
  const int64_t chunks = ChunksOf(rows);
  return at::arange(rows, at::kLong)
      .view({chunks, size(), rows / chunks / size()})
      .select(1, rank())
      .reshape({-1});
}

at::Tensor TensorAxis::HeldChunk(const Exchange& exchange, size_t chunk) const {
  const int64_t rows = exchange.chunk_rows() / size();
  return exchange.held.narrow(0, static_cast<int64_t>(chunk) * rows, rows);
}

TensorAxis::Exchange TensorAxis::StartGather(const at::Tensor& held) const {
  Exchange exchange;
  exchange.held = held;
  exchange.full = at::empty({held.size(0) * size(), held.size(1)}, held.options());
  exchange.pending.resize(static_cast<size_t>(ChunksOf(exchange.full.size(0))));
  for (size_t chunk = 0; chunk < exchange.pending.size(); ++chunk) {
    exchange.pending[chunk] =
        ValueOrThrow(group_->AllGather(exchange.Chunk(chunk), HeldChunk(exchange, chunk)));
  }
  return exchange;
}

TensorAxis::Exchange TensorAxis::PrepareScatter(int64_t rows, int64_t width,
                                                const at::TensorOptions& options) const {
  Exchange exchange;
  exchange.full = at::empty({rows, width}, options);
  exchange.held = at::empty({rows / size(), width}, options);
  exchange.pending.resize(static_cast<size_t>(ChunksOf(rows)));
  return exchange;
}

void TensorAxis::StartScatter(Exchange& exchange, size_t chunk) const {
  exchange.pending[chunk] =
      ValueOrThrow(group_->ReduceScatterSum(HeldChunk(exchange, chunk), exchange.Chunk(chunk)));
}

void TensorAxis::Wait(Exchange& exchange, size_t chunk) const {
  ThrowIfError(group_->Wait(exchange.pending[chunk]));
}

void TensorAxis::WaitAll(Exchange& exchange) const {
  for (size_t chunk = 0; chunk < exchange.pending.size(); ++chunk) Wait(exchange, chunk);
}

}  // namespace weft::train
