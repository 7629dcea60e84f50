// The data of a run: what its dataset is, the order of its samples, and the tokenizer. Opened once
// in a process, which calls Train again and again where other ranks are started anew; and by a
// spare process before it has a rank's place.
#ifndef WEFT_TRAINER_LOOP_RUN_DATA_H_
#define WEFT_TRAINER_LOOP_RUN_DATA_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "trainer/config.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/sampler.h"
#include "trainer/data/tokenizer.h"

namespace weft::train {

struct RunData {
  // Opens what is not open yet. `wants_tokenizer`: also opens the tokenizer; rank 0 uses it only at
  // the end of the run, but a run without a readable tokenizer is to fail at once. After an error
  // this may be called again.
  absl::Status Open(const TrainConfig& config, bool wants_tokenizer);

  DatasetInfo info;
  std::shared_ptr<const SampleStream> training, validation;
  std::optional<Tokenizer> tokenizer;

 private:
  absl::Status OpenTokenizer(const TrainConfig& config);

  std::string opened_;  // values of the config's keys that the open streams depend on
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RUN_DATA_H_
