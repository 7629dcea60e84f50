#include "topology/host/cpu_mask.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft::topology {
namespace {
constexpr int kWordBits = 32;
constexpr size_t kWordsMax = 8192 / kWordBits;  // CONFIG_NR_CPUS of the largest Linux
}  // namespace

std::optional<CpuSet> ParseCpuMask(absl::string_view text) {
  std::vector<absl::string_view> words = absl::StrSplit(absl::StripAsciiWhitespace(text), ',');
  if (words.size() > kWordsMax) return std::nullopt;
  CpuSet cpus;
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[words.size() - 1 - i];
    if (word.empty() && words.size() > 1) continue;
    absl::ConsumePrefix(&word, "0x");
    uint32_t bits = 0;
    const bool digits = std::all_of(word.begin(), word.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    if (!digits || word.size() > 8 || !absl::SimpleHexAtoi(word, &bits)) return std::nullopt;
    for (int bit = 0; bit < kWordBits; ++bit) {
      if ((bits >> bit) & 1) cpus.push_back(static_cast<int>(i) * kWordBits + bit);
    }
  }
  return cpus;
}

std::string CpuMaskText(const CpuSet& cpus) {
  std::vector<uint32_t> words(1);
  for (int cpu : cpus) {
    const size_t word = static_cast<size_t>(cpu) / kWordBits;
    if (word >= words.size()) words.resize(word + 1);
    words[word] |= uint32_t{1} << (cpu % kWordBits);
  }
  std::string text;
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    absl::StrAppendFormat(&text, "%s%08x", text.empty() ? "" : ",", *word);
  }
  return text;
}

}  // namespace weft::topology
