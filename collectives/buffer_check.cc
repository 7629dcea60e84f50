#include "collectives/buffer_check.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file_descriptor.h"
#include "base/memory_file.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr size_t kWindowBytes = 256 << 10;

// Memory that may not be there: the kernel copies it to and from a file in memory, and says how far
// it came.
class Window {
 public:
  Window() : file_(MakeMemoryFile("weft-verify-buffers")), bytes_(kWindowBytes) {}
  bool ok() const { return file_.get() >= 0; }

  // The first of `bytes` bytes at `memory` that differs from `expected` or is gone; `bytes`: none.
  size_t FirstDifference(const std::byte* memory, const std::byte* expected, size_t bytes,
                         bool* gone) {
    size_t at = 0;
    while (at < bytes) {
      const size_t part = std::min(bytes - at, kWindowBytes);
      const size_t there = Move(part, [&](size_t offset) {
        return pwrite(file_.get(), memory + at + offset, part - offset, static_cast<off_t>(offset));
      });
      if (pread(file_.get(), bytes_.data(), there, 0) != static_cast<ssize_t>(there)) return at;
      const auto difference = std::mismatch(
          bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(there), expected + at);
      const size_t equal = static_cast<size_t>(difference.first - bytes_.begin());
      at += equal;
      *gone = equal == there && there < part;
      if (equal < part) return at;
    }
    return bytes;
  }
  // How many of `bytes` bytes from `source` could be written to `memory`.
  size_t Write(std::byte* memory, const std::byte* source, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
      const size_t part = std::min(bytes - at, kWindowBytes);
      if (pwrite(file_.get(), source + at, part, 0) != static_cast<ssize_t>(part)) return at;
      const size_t there = Move(part, [&](size_t offset) {
        return pread(file_.get(), memory + at + offset, part - offset, static_cast<off_t>(offset));
      });
      at += there;
      if (there < part) return at;
    }
    return bytes;
  }

 private:
  // Calls `step` with how far it came, until it has moved all or moves nothing.
  template <typename Step>
  static size_t Move(size_t bytes, Step step) {
    size_t at = 0;
    while (at < bytes) {
      const ssize_t moved = step(at);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) break;
      at += static_cast<size_t>(moved);
    }
    return at;
  }

  FileDescriptor file_;
  std::vector<std::byte> bytes_;
};

absl::Status Found(absl::string_view name, size_t at, size_t bytes, bool gone) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the caller's ", name, " buffer ",
      gone ? "was freed: its memory is gone" : "was changed while the call had it", " at byte ", at,
      " of ", bytes, " (verify.buffers); keep it as it is until Wait() has returned"));
}

absl::Status Compare(Window& window, absl::string_view name, const BufferCheck::Buffer& buffer,
                     const std::byte* was) {
  for (const BufferCheck::Range& part : buffer.parts) {
    bool gone = false;
    const size_t at =
        window.FirstDifference(static_cast<const std::byte*>(buffer.data) + part.offset,
                               was + part.offset, part.bytes, &gone);
    if (at < part.bytes) return Found(name, part.offset + at, buffer.bytes, gone);
  }
  return absl::OkStatus();
}

}  // namespace

BufferCheck::BufferCheck(const Buffer& input, const Buffer& output)
    : input_(input), output_(output) {
  const auto copy = [](const std::byte* from, size_t bytes) {
    Bytes to(new std::byte[bytes]);
    if (bytes > 0) std::memcpy(to.get(), from, bytes);
    return to;
  };
  const auto* in = static_cast<const std::byte*>(input.data);
  const auto* out = static_cast<const std::byte*>(output.data);
  const bool overlap =
      input.bytes > 0 && output.bytes > 0 && in < out + output.bytes && out < in + input.bytes;
  if (overlap) {
    const std::byte* begin = std::min(in, out);
    const std::byte* end = std::max(in + input.bytes, out + output.bytes);
    was_[0] = copy(begin, static_cast<size_t>(end - begin));
    work_[0] = copy(begin, static_cast<size_t>(end - begin));
    input_was_ = was_[0].get() + (in - begin), output_was_ = was_[0].get() + (out - begin);
    work_input_ = work_[0].get() + (in - begin), work_output_ = work_[0].get() + (out - begin);
    return;
  }
  was_[0] = copy(in, input.bytes), was_[1] = copy(out, output.bytes);
  work_[1] = copy(out, output.bytes);
  input_was_ = work_input_ = was_[0].get();
  output_was_ = was_[1].get(), work_output_ = work_[1].get();
}

absl::Status BufferCheck::Finish() {
  Window window;
  if (!window.ok()) return ErrnoStatus(errno, "verify.buffers: create memory (memfd)");
  WEFT_RETURN_IF_ERROR(Compare(window, "input", input_, input_was_));
  WEFT_RETURN_IF_ERROR(Compare(window, "output", output_, output_was_));
  for (const Range& part : output_.parts) {
    const size_t written = window.Write(static_cast<std::byte*>(output_.data) + part.offset,
                                        work_output_ + part.offset, part.bytes);
    if (written < part.bytes) return Found("output", part.offset + written, output_.bytes, true);
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
