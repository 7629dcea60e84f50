// The ranks that share a layer: its matrices are cut over them (tensor parallelism), and between
// the matrix products its activations are cut by rows (sequence parallelism; Korthikanti et al.,
// "Reducing activation recomputation in large transformer models", MLSys 2023, section 4).
//
// Rows are exchanged in chunks, so that a matrix product on one chunk runs while the next is under
// way (MegaScale, section 3.2). Of `rows` rows, chunk c is the c-th of chunks() equal stretches,
// and rank r holds the r-th of size() equal stretches of each chunk, one chunk behind the other.
// Used by one thread. The errors of collectives are thrown as StatusError.
#ifndef WEFT_TRAINER_MODEL_TENSOR_AXIS_H_
#define WEFT_TRAINER_MODEL_TENSOR_AXIS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "trainer/groups/group.h"

namespace weft::train {

class TensorAxis {
 public:
  // `group` outlives this object. `chunks`: the most there are; one where the group does not
  // overlap. `keeps_gathered`: see the function of that name.
  TensorAxis(Group* group, int chunks, bool keeps_gathered = false)
      : group_(group),
        most_chunks_(group->overlaps() ? chunks : 1),
        keeps_gathered_(keeps_gathered) {}

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  Group& group() const { return *group_; }
  // Whether rows that a forward pass gathered stay for the backward pass, which else gathers them
  // again.
  bool keeps_gathered() const { return keeps_gathered_; }
  // The largest number of chunks that divides `rows`, which size() divides, and is no more than
  // wanted.
  int ChunksOf(int64_t rows) const;
  // Numbers of the rows that this rank holds, int64 [rows / size()].
  at::Tensor RowsHeld(int64_t rows) const;

  // An exchange of rows under way, a collective a chunk.
  struct Exchange {
    at::Tensor full;               // [rows, width], all ranks'
    at::Tensor held;               // [rows / size(), width], this rank's
    std::vector<Pending> pending;  // by chunk; an entry without work is done
    int64_t chunk_rows() const { return full.size(0) / static_cast<int64_t>(pending.size()); }
    at::Tensor Chunk(size_t chunk) const {
      return full.narrow(0, static_cast<int64_t>(chunk) * chunk_rows(), chunk_rows());
    }
  };
  // Every rank's rows into `full`.
  Exchange StartGather(const at::Tensor& held) const;
  // An exchange without a collective under way: chunks of `full` are to be written, and handed to
  // StartScatter, which adds up all ranks' and leaves this rank's rows in `held`.
  Exchange PrepareScatter(int64_t rows, int64_t width, const at::TensorOptions& options) const;
  void StartScatter(Exchange& exchange, size_t chunk) const;
  void Wait(Exchange& exchange, size_t chunk) const;
  void WaitAll(Exchange& exchange) const;

 private:
  at::Tensor HeldChunk(const Exchange& exchange, size_t chunk) const;

  Group* const group_;
  const int most_chunks_;
  const bool keeps_gathered_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_TENSOR_AXIS_H_
