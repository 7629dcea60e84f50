// Memory of a GPU that is not there: a DMA-BUF, and the address at which its users see it, where
// there is nothing, so that a process that touches it dies.
#ifndef WEFT_TESTS_NET_VERBS_GPU_MEMORY_H_
#define WEFT_TESTS_NET_VERBS_GPU_MEMORY_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "net/transport.h"

namespace weft::net {

class GpuMemory {
 public:
  // `at`: a given address, of memory that is alive.
  explicit GpuMemory(size_t size, std::byte* at = nullptr) : size_(size), owns_(at == nullptr) {
    fd_ = memfd_create("gpu", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(size)), 0);
    data_ = at != nullptr ? at : Map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    seen_ = Map(PROT_READ | PROT_WRITE, MAP_SHARED, fd_);
  }
  ~GpuMemory() {
    CloseDescriptor();
    munmap(seen_, size_);
    if (owns_) munmap(data_, size_);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* data() const { return data_; }
  std::byte* seen() const { return seen_; }  // as the GPU sees it
  size_t size() const { return size_; }
  int fd() const { return fd_; }
  DeviceMemory memory() const { return {data_, size_, fd_, 0}; }
  void CloseDescriptor() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Fill(uint8_t seed) {
    for (size_t i = 0; i < size_; ++i) seen_[i] = static_cast<std::byte>(seed + i * 7);
  }

 private:
  std::byte* Map(int protection, int flags, int fd) const {
    void* at = mmap(nullptr, size_, protection, flags, fd, 0);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<std::byte*>(at);
  }

  size_t size_;
  bool owns_;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::byte* seen_ = nullptr;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_VERBS_GPU_MEMORY_H_
