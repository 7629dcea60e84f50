// verify.buffers: finds a caller's buffer that is freed or changed while a call has it.
//
// The call works on copies. When it is done, the caller's buffers must hold what they held at the
// call, for nothing of ours has touched them; then the result is copied to where it belongs. The
// caller's memory is reached through the kernel, so that memory that is gone is an error and not a
// crash. A buffer that was freed, but whose memory was neither used again nor given back to the
// kernel, is not noticed.
//
// Costs the memory of the buffers once more (outputs twice) and a few passes over it: for tests.
#ifndef WEFT_COLLECTIVES_BUFFER_CHECK_H_
#define WEFT_COLLECTIVES_BUFFER_CHECK_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace weft::collectives {

class BufferCheck {
 public:
  struct Range {
    size_t offset = 0, bytes = 0;
  };
  // A buffer and the parts of it that the call reads or writes; others may be anybody's.
  struct Buffer {
    void* data = nullptr;
    size_t bytes = 0;
    std::vector<Range> parts;
  };
  // By the caller's thread, before the call begins. The buffers may be one, or overlap.
  BufferCheck(const Buffer& input, const Buffer& output);

  // What the call works on.
  const void* input() const { return work_input_; }
  void* output() const { return work_output_; }

  // Once the call is done; writes the result. FailedPrecondition: which buffer, the byte in it, and
  // whether its memory is gone or was changed.
  absl::Status Finish();

 private:
  using Bytes = std::unique_ptr<std::byte[]>;

  Buffer input_, output_;
  Bytes was_[2];   // of input and output, or of both where they overlap: as they were,
  Bytes work_[2];  // and what the call works on; inputs that it cannot write need no other copy
  const std::byte *input_was_ = nullptr, *output_was_ = nullptr;
  const std::byte* work_input_ = nullptr;
  std::byte* work_output_ = nullptr;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BUFFER_CHECK_H_
