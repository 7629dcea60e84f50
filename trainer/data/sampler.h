// Which tokens are training sample number k: the order of a run, fixed by (dataset, sequence
// length, seed) and nothing else, so that it is resumed by one integer and is the same for every
// number of ranks.
//
// After Megatron-LM's three indices, rebuilt in memory for each epoch:
//   document index   the documents, shuffled by the epoch's own random stream
//   sample index     their tokens, back to back, cut into windows of seq_length + 1 tokens, each
//                    beginning with the last token of the one before; a shorter rest is left out
//   shuffle index    the windows, shuffled
// Global sample k is window k % samples_per_epoch() of epoch k / samples_per_epoch().
//
// Step s with global batch B takes samples [s*B, (s+1)*B), and rank r of n the r-th of n equal,
// contiguous parts of it (see RankSlice).
#ifndef WEFT_TRAINER_DATA_SAMPLER_H_
#define WEFT_TRAINER_DATA_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/data/indexed_dataset.h"

namespace weft::train {

enum class SampleOrder {
  kShuffled,    // training
  kSequential,  // validation: windows in the order of the file, every epoch alike
};

// Samples without an end, numbered from 0. Thread-safe.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  virtual int64_t seq_length() const = 0;
  // tokens: [seq_length + 1], inputs and targets in one. global_sample >= 0.
  virtual absl::Status Read(int64_t global_sample, absl::Span<int32_t> tokens) const = 0;
};

// Samples of seq_length + 1 tokens in a dataset of `tokens`. InvalidArgument, with the arithmetic,
// where there is not even one; `dataset` names it.
absl::StatusOr<int64_t> SamplesPerEpoch(absl::string_view dataset, int64_t tokens,
                                        int64_t seq_length);

// One dataset.
class SampleStream final : public SampleSource {
 public:
  // InvalidArgument when the dataset has fewer than seq_length + 1 tokens. Read refuses ids that
  // are not in [0, vocab_size), as IndexedDataset does.
  static absl::StatusOr<std::unique_ptr<SampleStream>> Open(
      const std::string& prefix, int64_t seq_length, uint64_t seed,
      SampleOrder order = SampleOrder::kShuffled, int64_t vocab_size = kAnyVocabulary);

  int64_t seq_length() const override { return seq_length_; }
  int64_t samples_per_epoch() const { return samples_per_epoch_; }
  const IndexedDataset& dataset() const { return dataset_; }

  absl::Status Read(int64_t global_sample, absl::Span<int32_t> tokens) const override;

 private:
  struct Epoch {
    int64_t number = -1;
    std::vector<uint32_t> sequences;  // document index, as sequences
    std::vector<int64_t> starts;      // token at which each begins; one more: their sum
    std::vector<uint32_t> windows;    // shuffle index; empty: sequential
  };

  SampleStream(IndexedDataset dataset, int64_t seq_length, int64_t samples_per_epoch, uint64_t seed,
               SampleOrder order);
  std::shared_ptr<const Epoch> Build(int64_t number) const;
  std::shared_ptr<const Epoch> Get(int64_t number) const;

  IndexedDataset dataset_;
  int64_t seq_length_;
  int64_t samples_per_epoch_;
  uint64_t seed_;
  SampleOrder order_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Epoch>> recent_;  // at most two: a batch may span both
};

struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;  // exclusive
};
// Rank `rank`'s part of the global batch that begins at sample `first`. global_batch must be a
// multiple of world_size.
SampleRange RankSlice(int64_t first, int64_t global_batch, int rank, int world_size);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_SAMPLER_H_
