// The ranks that share a layer: its matrices are cut over them (tensor parallelism), and between
// the matrix products its activations are cut by rows (sequence parallelism; Korthikanti et al.,
// "Reducing activation recomputation in large transformer models", MLSys 2023, section 4).
//
// Rows are exchanged in chunks, so that a matrix product on one chunk runs while the next is under
// way (MegaScale, section 3.2). All rows are cut into chunks, and rank r holds the r-th of size()
// equal stretches of each chunk, one chunk behind the other. Nothing hides the first chunk of a
// gather and the last one of a reduce-scatter, so that the outer chunks are shorter than the others
// (ChunkEdges). Used by one thread. The errors of collectives are thrown as StatusError.
#ifndef WEFT_TRAINER_MODEL_TENSOR_AXIS_H_
#define WEFT_TRAINER_MODEL_TENSOR_AXIS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "trainer/groups/group.h"

namespace weft::train {

// Where each chunk of `held` rows of a rank begins, and `held` behind the last: `most` chunks, or
// as many as there are rows. The first chunks have 1 : 2 : 3 : 4 rows, the last ones 4 : 3 : 2 : 1,
// and all between them 4: each is hidden by the product of the one before it, which is hardly
// shorter. Of 16 chunks whose exchange takes half of their product 0.019 is exposed, where it takes
// 0.72 of it 0.035 (equal chunks: 0.062; with 1 : 2 : 4 0.019 and 0.052).
std::vector<int64_t> ChunkEdges(int64_t held, int most);

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
  // Numbers of the rows that this rank holds, int64 [rows / size()]; size() divides `rows`.
  at::Tensor RowsHeld(int64_t rows) const;

  // An exchange of rows under way, a collective a chunk.
  struct Exchange {
    at::Tensor full;               // [rows, width], all ranks'
    at::Tensor held;               // [rows / size(), width], this rank's
    std::vector<int64_t> begins;   // of each chunk, the first of all rows; `rows` behind the last
    std::vector<Pending> pending;  // by chunk; an entry without work is done
    size_t chunks() const { return pending.size(); }
    int64_t RowsOf(size_t chunk) const { return begins[chunk + 1] - begins[chunk]; }
    // A chunk of `all`, which has as many rows as `full`.
    at::Tensor ChunkOf(const at::Tensor& all, size_t chunk) const {
      return all.narrow(0, begins[chunk], RowsOf(chunk));
    }
    at::Tensor Chunk(size_t chunk) const { return ChunkOf(full, chunk); }
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
  Exchange Cut(at::Tensor full, at::Tensor held) const;
  at::Tensor HeldChunk(const Exchange& exchange, size_t chunk) const;

  Group* const group_;
  const int most_chunks_;
  const bool keeps_gathered_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_TENSOR_AXIS_H_
