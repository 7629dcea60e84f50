// The data-parallel group: a c10d::Backend whose exceptions have become statuses, and nothing at
// all for a group of one. Collectives on buckets return a Pending; the small ones for agreement
// block. Used by one thread.
#ifndef WEFT_TRAINER_PARALLEL_GROUP_H_
#define WEFT_TRAINER_PARALLEL_GROUP_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <exception>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// A collective under way. Its tensors belong to it until Wait.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;  // null: nothing to wait for
  const char* name = "";                // literal, for the trace
  int64_t start_ns = 0;                 // of the call
  int64_t bytes = 0;                    // of the whole buffer
};

// What a status says of an exception that ended here: LibTorch's without its stack.
std::string ExceptionText(const std::exception& error);

class Group {
 public:
  // `backend` may be null for size 1, and must outlive this object.
  Group(c10d::Backend* backend, int rank, int size) : backend_(backend), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  // shard = average over the ranks of this rank's part of `full`.
  absl::StatusOr<Pending> ReduceScatterAverage(at::Tensor shard, at::Tensor full);
  // `full` of all ranks' parts; `shard` may be this rank's part of `full` itself.
  absl::StatusOr<Pending> AllGather(at::Tensor full, at::Tensor shard);
  // Returns when the collective was done, SystemClock::Nanoseconds(); 0 for none.
  absl::StatusOr<int64_t> Wait(Pending& pending);

  // In place, in double, the same on every rank.
  absl::Status Sum(absl::Span<double> values);
  // Every rank's text, in order of rank.
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view text);
  // Rank 0's text, on every rank.
  absl::StatusOr<std::string> FromFirst(absl::string_view text);
  // OK if it is on every rank; otherwise the status of the first rank where it is not, with its
  // number, on all ranks.
  absl::Status Agree(const absl::Status& status);
  // The same outcome in `agreed`; returns an error only when the group itself fails.
  absl::Status Agree(const absl::Status& status, absl::Status& agreed);

 private:
  c10d::Backend* const backend_;
  const int rank_;
  const int size_;
};

}  // namespace weft

#endif  // WEFT_TRAINER_PARALLEL_GROUP_H_
