// Several datasets as one stream of samples, each with its share: which dataset sample k comes
// from, and which of that dataset's own samples it is, fixed by the weights alone. So a run is
// resumed by one integer, and has the same samples for every number of ranks and every layout.
//
// Shares are whole parts of a period of D samples, and every period is alike: the same order of
// datasets, from which dataset i is drawn parts_i times. Within a period the datasets take turns by
// Tijdeman's rule ("The chairman assignment problem", Discrete Mathematics 32, 1980): among the m
// datasets that have been drawn from by at least 1 / (2m - 2) samples too seldom, the one whose
// shortfall would reach 1 - 1 / (2m - 2) first. After any n samples, each dataset has then been
// drawn from within 1 - 1 / (2m - 2) samples of its share of n. (Taking the dataset that is the
// furthest behind does not keep one sample with many datasets.)
//
// D is the smallest number up to kPeriodMost of which every share is a whole part, to 1e-8 of a
// sample: 10 for weights 0.7 and 0.3, 3 for three equal ones. Where there is none, shares are
// rounded to parts of kPeriodMost, a millionth.
//
// Each dataset gives its own samples in the order that it has by itself: without replacement in an
// epoch, and shuffled anew in the next one (sampler.h). Datasets pass their epochs independently.
// One dataset alone is its own stream, sample by sample.
//
// Make takes O(m D) time; a sample is found in O(1) from a table of 8 D bytes, 8 MB at most.
#ifndef WEFT_TRAINER_DATA_SAMPLE_BLEND_H_
#define WEFT_TRAINER_DATA_SAMPLE_BLEND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/sampler.h"

namespace weft::train {

// Thread-safe.
class SampleBlend final : public SampleSource {
 public:
  static constexpr int64_t kPeriodMost = 1'000'000;

  // One weight, positive and finite, for each of the streams, which have one sequence length.
  // Weights need not add up to 1. InvalidArgument names a dataset whose share is below two
  // millionths: rounded, it might be none.
  static absl::StatusOr<std::unique_ptr<SampleBlend>> Make(
      std::vector<std::shared_ptr<const SampleStream>> streams, absl::Span<const double> weights);

  struct Draw {
    size_t dataset = 0;  // index in the list of streams
    int64_t sample = 0;  // of that dataset, counted over its epochs
  };
  Draw DrawOf(int64_t global_sample) const;  // global_sample >= 0

  const std::vector<std::shared_ptr<const SampleStream>>& streams() const { return streams_; }
  int64_t period() const { return static_cast<int64_t>(turns_.size()); }

  int64_t seq_length() const override { return streams_.front()->seq_length(); }
  absl::Status Read(int64_t global_sample, absl::Span<int32_t> tokens) const override;

 private:
  // A sample of a period: its dataset, and how often the period has drawn from that before.
  struct Turn {
    uint32_t dataset = 0;
    uint32_t before = 0;
  };

  SampleBlend(std::vector<std::shared_ptr<const SampleStream>> streams, std::vector<int64_t> parts);

  std::vector<std::shared_ptr<const SampleStream>> streams_;
  std::vector<int64_t> parts_;  // samples of a period, of each dataset
  std::vector<Turn> turns_;     // the samples of a period
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_SAMPLE_BLEND_H_
