// English-like text for tests, made up from a seed.
#ifndef WEFT_TESTS_TRAINER_DATA_SAMPLE_TEXT_H_
#define WEFT_TESTS_TRAINER_DATA_SAMPLE_TEXT_H_

#include <array>
#include <string>
#include <vector>

#include "base/random.h"

namespace weft::train {

inline std::vector<std::string> SampleLines(int count, uint64_t seed = 1) {
  constexpr std::array kSyllables = {"the ",  "of ",   "and ", "net",  "work",  "ing ",
                                     "er ",   "tion ", "re",   "con",  "form",  "ed ",
                                     "in",    "ter",   "al ",  "ly ",  "pre",   "sent",
                                     "able ", "s ",    "cat ", "dog ", "ment ", "un"};
  Random random(seed);
  std::vector<std::string> lines;
  for (int i = 0; i < count; ++i) {
    std::string line;
    for (uint64_t n = 10 + random.Below(20); n > 0; --n) {
      line += kSyllables[random.Below(kSyllables.size())];
    }
    lines.push_back(line + std::to_string(random.Below(1000)) + ".");
  }
  return lines;
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_DATA_SAMPLE_TEXT_H_
