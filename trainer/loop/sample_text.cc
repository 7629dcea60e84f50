#include "trainer/loop/sample_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "trainer/files/file.h"
#include "trainer/generate/generate.h"

namespace weft::train {

absl::StatusOr<std::string> WriteSample(const TrainConfig& config, Gpt& model,
                                        const Tokenizer& tokenizer, const std::string& path) {
  std::string text;
  if (config.sample_tokens == 0) return text;
  std::vector<std::string> prompts;
  for (absl::string_view prompt : absl::StrSplit(config.sample_prompt, '|')) {
    prompts.insert(prompts.end(), static_cast<size_t>(config.sample_count), std::string(prompt));
  }
  WEFT_ASSIGN_OR_RETURN(const Generated written, Generate(model, tokenizer, prompts,
                                                          {.tokens = config.sample_tokens,
                                                           .temperature = config.sample_temperature,
                                                           .top_k = config.sample_top_k,
                                                           .seed = config.seed,
                                                           .cut_prompts = true}));
  for (const GeneratedText& part : written.texts) absl::StrAppend(&text, part.text, "\n\n");
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(path, text));
  return text;
}

}  // namespace weft::train
