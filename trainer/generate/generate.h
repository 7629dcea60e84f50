// Texts that a model writes: one token after the other, drawn from its own predictions.
//
//   WEFT_ASSIGN_OR_RETURN(Generated written,
//                         Generate(model, tokenizer, {"The sea"}, {.tokens = 50}));
//   written.texts[0].text  // "The sea ..."
//
// Texts are written `batch` at a time, each from its own prompt and with draws of its own: text
// number i depends on the model, prompt i and seed + i, not on the texts beside it. A text ends
// with the document, or with its number of tokens. Where it outgrows model.sequence, the newest
// half of that many tokens is read anew, as the beginning of what follows.
#ifndef WEFT_TRAINER_GENERATE_GENERATE_H_
#define WEFT_TRAINER_GENERATE_GENERATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "trainer/data/tokenizer.h"
#include "trainer/model/gpt.h"

namespace weft::train {

struct GenerateOptions {
  int64_t tokens = 100;      // of a text, at most, beside those of its prompt
  double temperature = 1;    // 0: the likeliest token always
  int64_t top_k = 0;         // draws among so many likeliest; 0: all
  double top_p = 1;          // draws among the likeliest that have this probability together
  uint64_t seed = 1;         // of the first text
  int64_t batch = 1;         // texts at a time
  bool cut_prompts = false;  // of a prompt that is too long the newest tokens are read
  Bytes memory;              // that the model and the texts of a batch may take; 0: not checked
};

// InvalidArgument names the option, its value and what would be right.
absl::Status CheckGenerateOptions(const GenerateOptions& options);

struct GeneratedText {
  std::string text;  // the prompt and what follows it
  int64_t prompt_tokens = 0;
  std::vector<int32_t> tokens;  // behind the prompt
  bool ended_document = false;  // false: it has as many tokens as it may
};

struct GenerateSpeed {
  int64_t prefill_tokens = 0;  // read, of prompts and of texts that outgrew the context
  double prefill_seconds = 0;
  int64_t decode_tokens = 0;  // written with the cache
  int64_t decode_steps = 0;   // of all texts of a batch together
  double decode_seconds = 0;  // drawing the tokens included
  int64_t decode_bytes = 0;   // that these steps had to read: weights, keys and values
};

struct Generated {
  std::vector<GeneratedText> texts;  // as the prompts
  GenerateSpeed speed;
};

// Called with a part of text number `text`, behind its prompt, as soon as it is there; parts are
// whole UTF-8 characters.
using OnGenerated = std::function<void(size_t text, absl::string_view part)>;

// An empty prompt is the beginning of a document. InvalidArgument: an option, or a prompt that is
// longer than model.sequence and is not to be cut. FailedPrecondition: the model predicts what is
// not finite. `on_part` may be null.
absl::StatusOr<Generated> Generate(const Gpt& model, const Tokenizer& tokenizer,
                                   absl::Span<const std::string> prompts,
                                   const GenerateOptions& options,
                                   const OnGenerated& on_part = nullptr);

}  // namespace weft::train

#endif  // WEFT_TRAINER_GENERATE_GENERATE_H_
