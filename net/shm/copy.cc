#include "net/shm/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::net::shm {
namespace {

constexpr size_t kLine = 64;

// Bytes up to the first line boundary of `to`.
size_t Head(const std::byte* to, size_t bytes) {
  return std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void Avx2(std::byte* to, const std::byte* from, size_t bytes) {
  size_t i = Head(to, bytes);
  std::memcpy(to, from, i);
  for (; i + 2 * kLine <= bytes; i += 2 * kLine) {
    __m256i part[4];
    for (int k = 0; k < 4; ++k) {
      part[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i) + k);
    }
    for (int k = 0; k < 4; ++k) {
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i) + k, part[k]);
    }
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}

__attribute__((target("avx512f"))) void Avx512(std::byte* to, const std::byte* from, size_t bytes) {
  size_t i = Head(to, bytes);
  std::memcpy(to, from, i);
  for (; i + 4 * kLine <= bytes; i += 4 * kLine) {
    __m512i part[4];
    for (int k = 0; k < 4; ++k) part[k] = _mm512_loadu_si512(from + i + k * kLine);
    for (int k = 0; k < 4; ++k) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + k * kLine), part[k]);
    }
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}

#endif

void Plain(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

CopyFn Best() {
  if (CopyFn copy = CopyAroundAvx512(); copy != nullptr) return copy;
  if (CopyFn copy = CopyAroundAvx2(); copy != nullptr) return copy;
  return Plain;
}

}  // namespace

CopyFn CopyAroundAvx2() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return Avx2;
#endif
  return nullptr;
}

CopyFn CopyAroundAvx512() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return Avx512;
#endif
  return nullptr;
}

void CopyAround(std::byte* to, const std::byte* from, size_t bytes) {
  static const CopyFn copy = Best();
  copy(to, from, bytes);
}

}  // namespace weft::net::shm
