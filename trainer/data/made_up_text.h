// A dataset of made-up sentences, for a first try of a layout where there is no text: some grammar
// and some numbers, so that there is something to learn, and nothing to be read into its losses.
#ifndef WEFT_TRAINER_DATA_MADE_UP_TEXT_H_
#define WEFT_TRAINER_DATA_MADE_UP_TEXT_H_

#include <string>

#include "absl/status/status.h"

namespace weft::train {

// Writes PREFIX.txt and what PrepareDataset makes of it, some 400,000 tokens of a vocabulary of
// 512, in a second or two; the same at every call. Nothing where PREFIX.json is there. Makes the
// folder.
absl::Status PrepareMadeUpText(const std::string& prefix);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_MADE_UP_TEXT_H_
