// The text that the model of a finished run writes, for its user to read.
#ifndef WEFT_TRAINER_LOOP_SAMPLE_TEXT_H_
#define WEFT_TRAINER_LOOP_SAMPLE_TEXT_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/data/tokenizer.h"
#include "trainer/model/gpt.h"

namespace weft::train {

// Continues the prompts of the config's section [sample], writes the texts to the file `path`, and
// returns them. Empty, and no file, where sample.tokens is 0.
absl::StatusOr<std::string> WriteSample(const TrainConfig& config, Gpt& model,
                                        const Tokenizer& tokenizer, const std::string& path);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SAMPLE_TEXT_H_
