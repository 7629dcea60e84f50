// What weft-data knows about a dataset beside its tokens: <prefix>.json.
#ifndef WEFT_TRAINER_DATA_DATASET_INFO_H_
#define WEFT_TRAINER_DATA_DATASET_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/data/indexed_dataset.h"

namespace weft::train {

// Above every tokenizer's; also the bound of --vocab-size.
inline constexpr int32_t kVocabularyMost = 1 << 24;

struct DatasetInfo {
  int32_t vocab_size = 0;
  int32_t eod_id = 0;
  int64_t train_documents = 0;
  int64_t train_tokens = 0;
  int64_t validation_documents = 0;
  int64_t validation_tokens = 0;
  double unigram_loss = 0;  // nats a token, see UnigramLoss
  std::string tokenizer;    // path of the model; in the file, relative to the file's folder
  uint64_t seed = 0;
  double validation_fraction = 0;
  std::string split;
  std::string cleaner;
  int64_t invalid_utf8 = 0;  // ill-formed parts of the input that were replaced
  std::vector<std::string> inputs;
  std::string sentencepiece_version;
};

absl::Status WriteDatasetInfo(const std::string& prefix, const DatasetInfo& info);
// Keys that are not known are passed over; one that is missing, mistyped or out of its range is an
// error that names it, what was found and what is right.
absl::StatusOr<DatasetInfo> ReadDatasetInfo(const std::string& prefix);
// Reads the descriptions of the datasets that one run trains on, in their order. NotFound where no
// dataset is named; FailedPrecondition, naming two datasets and what differs, unless all have one
// tokenizer: the same number of tokens, end of documents and, where they name different files, the
// same bytes in them.
absl::StatusOr<std::vector<DatasetInfo>> ReadDatasetInfos(absl::Span<const std::string> prefixes);

// The loss that a model reaches which knows only how often each token occurs: cross-entropy on
// `validation`, in nats a token, of the frequencies in `train` with one added to every token's
// count.
absl::StatusOr<double> UnigramLoss(const IndexedDataset& train, const IndexedDataset& validation,
                                   int64_t vocab_size);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_DATASET_INFO_H_
