// Datasets whose tokens are numbers in a row, so that a sample shows where it was cut.
#ifndef WEFT_TESTS_TRAINER_DATA_COUNTING_DATA_H_
#define WEFT_TESTS_TRAINER_DATA_COUNTING_DATA_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "trainer/data/indexed_dataset.h"
#include "trainer/data/sampler.h"

namespace weft::train {

// Token i of the file is first + i. Some documents are empty. Returns the number of tokens.
inline int64_t WriteCounting(const std::string& prefix, int documents, int32_t first = 0) {
  auto writer = IndexedDatasetWriter::Create(prefix, TokenType::kI32);
  EXPECT_TRUE(writer.ok());
  Random random(3);
  int32_t next = first;
  for (int d = 0; d < documents; ++d) {
    std::vector<int32_t> tokens(random.Below(40));
    for (int32_t& token : tokens) token = next++;
    EXPECT_TRUE(writer->AddDocument(tokens).ok());
  }
  EXPECT_TRUE(writer->Commit().ok());
  return next - first;
}

inline std::vector<int32_t> Read(const SampleSource& source, int64_t sample) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.seq_length() + 1));
  absl::Status status = source.Read(sample, absl::MakeSpan(tokens));
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_DATA_COUNTING_DATA_H_
