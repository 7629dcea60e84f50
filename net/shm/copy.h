// Copies between user memory and the arena.
#ifndef WEFT_NET_SHM_COPY_H_
#define WEFT_NET_SHM_COPY_H_

#include <cstddef>

namespace weft::net::shm {

// Messages from here on are stored around the cache (see CopyAround). Half of an ordinary core's
// second-level cache: what is larger would not be in there any more when it is used next.
inline constexpr size_t kCopyAroundMin = size_t{4} << 20;

// Like memcpy, but with stores that do not first read the lines of `to`, nor keep them in the
// cache: a third less memory traffic for a large message. AVX-512, AVX2 or memcpy, whichever this
// CPU has.
void CopyAround(std::byte* to, const std::byte* from, size_t bytes);

// Its implementations, for tests: null where the CPU lacks them.
using CopyFn = void (*)(std::byte* to, const std::byte* from, size_t bytes);
CopyFn CopyAroundAvx2();
CopyFn CopyAroundAvx512();

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_COPY_H_
