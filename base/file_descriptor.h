// A file descriptor with an owner: closed when that goes. Move-only; -1 is none.
#ifndef WEFT_BASE_FILE_DESCRIPTOR_H_
#define WEFT_BASE_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace weft {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~FileDescriptor() { Reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void Reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace weft

#endif  // WEFT_BASE_FILE_DESCRIPTOR_H_
