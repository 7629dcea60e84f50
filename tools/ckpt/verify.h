// weft-ckpt verify: reads every byte of a checkpoint and says all that is wrong with it, not only
// what comes first.
#ifndef WEFT_TOOLS_CKPT_VERIFY_H_
#define WEFT_TOOLS_CKPT_VERIFY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/manifest.h"

namespace weft::ckpt {

// Something wrong with a file.
struct Fault {
  std::string file;      // name within the checkpoint's folder
  std::string buffer;    // which of the file's buffers; empty: the file as a whole
  std::string expected;  // as the manifest has it: a checksum, a size, a type
  std::string found;
  // "rank-00000-of-00001.safetensors, buffer 'parameters.norm.weight': checksum 01234567 expected,
  // checksum 89abcdef found"
  std::string Text() const;
};

struct Verification {
  train::Manifest manifest;
  int64_t bytes = 0;    // that were read
  int64_t tensors = 0;  // of buffers, over all shards
  std::vector<Fault> faults;
  bool whole() const { return faults.empty(); }
};

// Sizes alone (`read_all` false), or every byte. An error: there is no manifest that can be read;
// names it.
absl::StatusOr<Verification> Verify(const std::string& checkpoint, bool read_all = true);

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_VERIFY_H_
