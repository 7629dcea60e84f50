// Training data of sample text, for tests that run a few steps.
#ifndef WEFT_TESTS_TRAINER_DATA_SAMPLE_DATA_H_
#define WEFT_TESTS_TRAINER_DATA_SAMPLE_DATA_H_

#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "tests/trainer/data/sample_text.h"
#include "trainer/data/prepare.h"

namespace weft::train {

// 400 documents, of 320 tokens, as `folder`/data.
inline absl::Status PrepareSampleData(const std::string& folder) {
  PrepareOptions options;
  options.inputs = {folder + "/text.txt"};
  options.output_prefix = folder + "/data";
  options.vocab_size = 320;
  options.validation_fraction = 0.1;
  options.threads = 1;
  std::ofstream text(options.inputs[0]);
  for (const std::string& line : SampleLines(400)) text << line << "\n\n";
  text.close();
  return PrepareDataset(options).status();
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_DATA_SAMPLE_DATA_H_
