// The data of a run: what its datasets are, the order of samples, and the tokenizer. Opened once
// in a process, which calls Train again and again where other ranks are started anew; and by a
// spare process before it has a rank's place.
#ifndef WEFT_TRAINER_LOOP_RUN_DATA_H_
#define WEFT_TRAINER_LOOP_RUN_DATA_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "trainer/config.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/sample_blend.h"
#include "trainer/data/sampler.h"
#include "trainer/data/tokenizer.h"

namespace weft::train {

struct RunData {
  // Opens what is not open yet. `wants_tokenizer`: also opens the tokenizer; rank 0 uses it only at
  // the end of the run, but a run without a readable tokenizer is to fail at once. After an error
  // this may be called again.
  absl::Status Open(const TrainConfig& config, bool wants_tokenizer);

  // Descriptions of the config's datasets, in their order.
  std::vector<DatasetInfo> infos;
  std::shared_ptr<const SampleBlend> training;
  std::vector<std::shared_ptr<const SampleStream>> validation;
  std::optional<Tokenizer> tokenizer;

  // All datasets have one vocabulary and tokenizer.
  int32_t vocab_size() const { return infos.front().vocab_size; }
  const std::string& tokenizer_path() const { return infos.front().tokenizer; }
  double unigram_loss = 0;  // nats a token: the datasets' own, weighted by their shares

 private:
  absl::Status OpenStreams(const TrainConfig& config);
  absl::Status OpenTokenizer(const TrainConfig& config);

  std::string opened_;  // values of the config's keys that the open streams depend on
};

// For people, a line a dataset: its share, its samples, and how often a run of the config sees
// them. `samples_per_epoch`: of each.
std::vector<std::string> DescribeDatasets(const TrainConfig& config,
                                          absl::Span<const int64_t> samples_per_epoch);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RUN_DATA_H_
