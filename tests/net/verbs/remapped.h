// Addresses at which a process maps other memory now and then, as its allocators do. The scripted
// devices go on at the pages that were registered (scripted_memory.h).
#ifndef WEFT_TESTS_NET_VERBS_REMAPPED_H_
#define WEFT_TESTS_NET_VERBS_REMAPPED_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>

namespace weft::net {

class Remapped {
 public:
  explicit Remapped(size_t bytes) : bytes_(bytes), data_(Map(nullptr, 0)) {}
  ~Remapped() { munmap(data_, bytes_); }
  Remapped(const Remapped&) = delete;
  Remapped& operator=(const Remapped&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Other pages, of zeroes, at the same addresses; or at others, where another thread was faster.
  void MapAnew() {
    munmap(data_, bytes_);
    std::byte* anew = Map(data_, MAP_FIXED_NOREPLACE);
    data_ = anew != MAP_FAILED ? anew : Map(nullptr, 0);
  }

 private:
  std::byte* Map(std::byte* at, int flags) const {
    return static_cast<std::byte*>(
        mmap(at, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | flags, -1, 0));
  }

  size_t bytes_;
  std::byte* data_;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_VERBS_REMAPPED_H_
