#include "trainer/loop/run_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {

absl::Status RunData::Open(const TrainConfig& config, bool wants_tokenizer) {
  const std::string wanted =
      absl::StrCat(config.data_prefix, "\n", config.model.sequence, " ", config.seed);
  if (opened_ != wanted) {
    *this = RunData();
    WEFT_ASSIGN_OR_RETURN(info, ReadDatasetInfo(config.data_prefix));
    auto open = [&](const char* part, SampleOrder order) {
      return SampleStream::Open(config.data_prefix + part, config.model.sequence, config.seed,
                                order, info.vocab_size);
    };
    WEFT_ASSIGN_OR_RETURN(training, open("_train", SampleOrder::kShuffled));
    WEFT_ASSIGN_OR_RETURN(validation, open("_valid", SampleOrder::kSequential));
    opened_ = wanted;
  }
  return wants_tokenizer && !tokenizer.has_value() ? OpenTokenizer(config) : absl::OkStatus();
}

absl::Status RunData::OpenTokenizer(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(info.tokenizer));
  if (loaded.vocab_size() > info.vocab_size) {
    return absl::FailedPreconditionError(absl::StrCat(
        config.data_prefix, ".json: 'vocab_size' is ", info.vocab_size, ", but its tokenizer ",
        info.tokenizer, " has ", loaded.vocab_size(),
        " tokens; run weft-data prepare again, or name the tokenizer that made the data"));
  }
  tokenizer = std::move(loaded);
  return absl::OkStatus();
}

}  // namespace weft::train
