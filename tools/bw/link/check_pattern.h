// The pattern of 64-bit words that fills messages whose contents are checked: it differs between
// neighbouring messages and between the words of one message.
#ifndef WEFT_TOOLS_BW_LINK_CHECK_PATTERN_H_
#define WEFT_TOOLS_BW_LINK_CHECK_PATTERN_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft::link_bw {

inline uint64_t PatternWord(int64_t message, size_t offset) {
  const uint64_t seed = static_cast<uint64_t>(message + 1) * 0x9E3779B97F4A7C15ULL;
  return (seed + offset) * 0xD1B54A32D192ED03ULL;
}

inline void WritePattern(std::byte* to, size_t bytes, int64_t message) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(message, at);
    std::memcpy(to + at, &word, std::min(sizeof(word), bytes - at));
  }
}

inline bool HasPattern(const std::byte* data, size_t bytes, int64_t message) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = PatternWord(message, at);
    if (std::memcmp(data + at, &word, std::min(sizeof(word), bytes - at)) != 0) return false;
  }
  return true;
}

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_CHECK_PATTERN_H_
