// Plain text to a training set: what `weft-data prepare` does.
//
// Writes <prefix>_train.{bin,idx}, <prefix>_valid.{bin,idx}, <prefix>.model (unless a tokenizer is
// given) and, last, <prefix>.json (dataset_info.h): a folder with the .json is whole. The result
// depends on the texts, the seed and the options, not on the number of threads. The largest input
// file, unpacked, must fit into memory twice; the inputs together need not.
#ifndef WEFT_TRAINER_DATA_PREPARE_H_
#define WEFT_TRAINER_DATA_PREPARE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/text.h"

namespace weft::train {

enum class TextCleaner { kNone, kGcide };
absl::StatusOr<TextCleaner> ParseTextCleaner(absl::string_view name);

struct PrepareOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  std::string tokenizer;              // an existing model; empty: one is learnt
  int32_t vocab_size = 4096;          // of the one that is learnt
  double validation_fraction = 0.02;  // of the documents; 0 < fraction < 1
  uint64_t seed = 1;
  int threads = 0;           // 0: as many as there are cores
  Bytes text_most = GiB(4);  // of one input file, unpacked
  DocumentSplit split = DocumentSplit::kBlankLines;
  TextCleaner cleaner = TextCleaner::kNone;   // kGcide splits by itself
  int64_t tokenizer_sample_bytes = 16 << 20;  // text, drawn at random, to learn the tokenizer from
};

// Called now and then by the calling thread; `fraction` of the phase, or below 0 where unknown.
using PrepareProgress = std::function<void(absl::string_view phase, double fraction)>;

absl::StatusOr<DatasetInfo> PrepareDataset(const PrepareOptions& options,
                                           const PrepareProgress& progress = nullptr);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_PREPARE_H_
