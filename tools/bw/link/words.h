// The contents of messages that are checked: no two messages near each other, and no two words of
// one, are alike.
#ifndef WEFT_TOOLS_BW_LINK_WORDS_H_
#define WEFT_TOOLS_BW_LINK_WORDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft::link_bw {

inline uint64_t WordOf(int64_t message, size_t offset) {
  const uint64_t seed = static_cast<uint64_t>(message + 1) * 0x9E3779B97F4A7C15ULL;
  return (seed + offset) * 0xD1B54A32D192ED03ULL;
}

inline void WriteWords(std::byte* to, size_t bytes, int64_t message) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = WordOf(message, at);
    std::memcpy(to + at, &word, std::min(sizeof(word), bytes - at));
  }
}

inline bool HasWords(const std::byte* data, size_t bytes, int64_t message) {
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = WordOf(message, at);
    if (std::memcmp(data + at, &word, std::min(sizeof(word), bytes - at)) != 0) return false;
  }
  return true;
}

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_WORDS_H_
