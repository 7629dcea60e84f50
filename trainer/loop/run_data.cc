#include "trainer/loop/run_data.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status.h"

namespace weft::train {
namespace {

// Seed of the order of a dataset's samples: each dataset of a blend is shuffled in its own way,
// also where two have the same size, and the first one as if it were alone.
uint64_t SeedOf(uint64_t seed, size_t dataset) {
  uint64_t state = seed + dataset;
  return dataset == 0 ? seed : SplitMix64(state);
}

}  // namespace

absl::Status RunData::Open(const TrainConfig& config, bool wants_tokenizer) {
  const std::string wanted = absl::StrCat(absl::StrJoin(config.data.prefixes, "\n"), "\n",
                                          absl::StrJoin(config.data.shares, " "), "\n",
                                          config.model.sequence, " ", config.seed);
  if (opened_ != wanted) {
    *this = RunData();
    WEFT_RETURN_IF_ERROR(OpenStreams(config));
    opened_ = wanted;
  }
  return wants_tokenizer && !tokenizer.has_value() ? OpenTokenizer(config) : absl::OkStatus();
}

absl::Status RunData::OpenStreams(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(infos, ReadDatasetInfos(config.data.prefixes));
  std::vector<std::shared_ptr<const SampleStream>> streams;
  for (size_t i = 0; i < infos.size(); ++i) {
    const auto open = [&](const char* part, SampleOrder order) {
      return SampleStream::Open(config.data.prefixes[i] + part, config.model.sequence,
                                SeedOf(config.seed, i), order, vocab_size());
    };
    WEFT_ASSIGN_OR_RETURN(streams.emplace_back(), open("_train", SampleOrder::kShuffled));
    WEFT_ASSIGN_OR_RETURN(validation.emplace_back(), open("_valid", SampleOrder::kSequential));
    unigram_loss += config.data.shares[i] * infos[i].unigram_loss;
  }
  WEFT_ASSIGN_OR_RETURN(training, SampleBlend::Make(std::move(streams), config.data.shares));
  return absl::OkStatus();
}

absl::Status RunData::OpenTokenizer(const TrainConfig& config) {
  WEFT_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(tokenizer_path()));
  if (loaded.vocab_size() > vocab_size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        config.data.prefixes.front(), ".json: 'vocab_size' is ", vocab_size(),
        ", but its tokenizer ", tokenizer_path(), " has ", loaded.vocab_size(),
        " tokens; run weft-data prepare again, or name the tokenizer that made the data"));
  }
  tokenizer = std::move(loaded);
  return absl::OkStatus();
}

std::vector<std::string> DescribeDatasets(const TrainConfig& config,
                                          absl::Span<const int64_t> samples_per_epoch) {
  std::vector<std::string> lines;
  const double samples =
      static_cast<double>(config.steps) * static_cast<double>(config.global_batch);
  for (size_t i = 0; i < samples_per_epoch.size(); ++i) {
    const double share = config.data.shares[i];
    lines.push_back(
        absl::StrFormat("%s: %.4g %% of the samples, %d in an epoch; %.2f epochs in %d steps",
                        config.data.prefixes[i], 100 * share, samples_per_epoch[i],
                        share * samples / static_cast<double>(samples_per_epoch[i]), config.steps));
  }
  return lines;
}

}  // namespace weft::train
