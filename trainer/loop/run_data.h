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
  // Opens what is not open yet. `wants_tokenizer`: rank 0 writes text with it at the end only, but
  // a run that is to fail for it fails at once. After an error it may be called again.
  absl::Status Open(const TrainConfig& config, bool wants_tokenizer);

  DatasetInfo info;
  std::shared_ptr<const SampleStream> training, validation;
  std::optional<Tokenizer> tokenizer;

 private:
  absl::Status OpenTokenizer(const TrainConfig& config);

  std::string opened_;  // what of the config the streams are of
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_RUN_DATA_H_
