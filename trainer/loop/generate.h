// Text that a model writes: one token after the other, drawn from its own predictions.
#ifndef WEFT_TRAINER_LOOP_GENERATE_H_
#define WEFT_TRAINER_LOOP_GENERATE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "trainer/data/tokenizer.h"
#include "trainer/model/gpt.h"

namespace weft::train {

struct GenerateOptions {
  std::string prompt;  // empty: the beginning of a document
  int64_t tokens = 100;
  double temperature = 1;  // 0: the likeliest token always
  int top_k = 0;           // 0: all
  uint64_t seed = 1;
};

// The prompt and what follows it; ends early with the document. The model sees the last
// model.sequence tokens. Depends on the arguments alone.
absl::StatusOr<std::string> Generate(Gpt& model, const Tokenizer& tokenizer,
                                     const GenerateOptions& options);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_GENERATE_H_
