// Reads the next batches of one rank while the current step runs: one background thread, a bounded
// queue, one integer of state.
//
//   BatchLoader loader(stream, {.global_batch = 32, .rank = r, .world_size = n,
//                               .start_sample = checkpoint.samples_consumed});
//   WEFT_ASSIGN_OR_RETURN(Batch batch, loader->Next());
//   ... checkpoint.samples_consumed = loader->position();
//
// Next and position belong to one thread. The destructor stops and joins the background thread,
// whether batches are left or not.
#ifndef WEFT_TRAINER_DATA_BATCH_LOADER_H_
#define WEFT_TRAINER_DATA_BATCH_LOADER_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/sampler.h"

namespace weft::train {

struct BatchOptions {
  int64_t global_batch = 1;  // samples a step over all ranks; a multiple of world_size
  int rank = 0;
  int world_size = 1;
  int64_t start_sample = 0;  // samples consumed before, over all ranks
  int prefetch = 2;          // batches made ahead; 0: Next makes them, and there is no thread
};

struct Batch {
  int64_t first_sample = 0;     // of this rank
  int64_t rows = 0;             // global_batch / world_size
  int64_t columns = 0;          // seq_length + 1
  std::vector<int64_t> tokens;  // [rows, columns]: the number type that embedding and loss take
};

// kInvalidArgument where `rows` samples of `seq_length` tokens are more than the loader of one rank
// takes at a time.
absl::Status CheckBatchFits(int64_t rows, int64_t seq_length);

class BatchLoader {
 public:
  // `stream` may serve other loaders too.
  static absl::StatusOr<std::unique_ptr<BatchLoader>> Start(
      std::shared_ptr<const SampleSource> stream, const BatchOptions& options);
  ~BatchLoader();
  BatchLoader(const BatchLoader&) = delete;
  BatchLoader& operator=(const BatchLoader&) = delete;

  // Waits until the batch is there, which it usually is. After an error every call returns it.
  absl::StatusOr<Batch> Next();

  // Samples consumed over all ranks: what Next has handed out, not what was read ahead.
  int64_t position() const { return position_; }

 private:
  BatchLoader(std::shared_ptr<const SampleSource> stream, const BatchOptions& options);
  void Run();
  absl::StatusOr<Batch> Make(int64_t first) const;

  const std::shared_ptr<const SampleSource> stream_;
  const BatchOptions options_;
  int64_t position_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<absl::StatusOr<Batch>> ready_;  // guarded by mutex_; an error is the last
  bool stopping_ = false;                    // guarded by mutex_
  std::thread thread_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_BATCH_LOADER_H_
