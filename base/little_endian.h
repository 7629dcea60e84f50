// Whole numbers as frames and files hold them: little endian.
#ifndef WEFT_BASE_LITTLE_ENDIAN_H_
#define WEFT_BASE_LITTLE_ENDIAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace weft {

// Appends to a text, or to whatever has append(bytes, count).
template <typename T, typename Out>
void PutLittle(Out& out, T value) {
  std::array<char, sizeof(T)> bytes;
  for (size_t i = 0; i < sizeof(T); ++i) {  // one instruction on a little-endian machine
    bytes[i] = static_cast<char>(static_cast<std::make_unsigned_t<T>>(value) >> (8 * i));
  }
  out.append(bytes.data(), bytes.size());
}

// From the front of `bytes`, which are at least so many.
template <typename T>
T LoadLittle(absl::string_view bytes) {
  std::make_unsigned_t<T> value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<std::make_unsigned_t<T>>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return static_cast<T>(value);
}

// The same, and removes it from there; false: there are fewer.
template <typename T>
bool TakeLittle(absl::string_view& bytes, T* value) {
  if (bytes.size() < sizeof(T)) return false;
  *value = LoadLittle<T>(bytes);
  bytes.remove_prefix(sizeof(T));
  return true;
}

}  // namespace weft

#endif  // WEFT_BASE_LITTLE_ENDIAN_H_
