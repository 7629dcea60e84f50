// What weft-ckpt prints: for people, and as one JSON object a call.
#ifndef WEFT_TOOLS_CKPT_REPORT_H_
#define WEFT_TOOLS_CKPT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/ckpt/diff.h"
#include "tools/ckpt/verify.h"

namespace weft::ckpt {

// A folder that list has found.
struct Listed {
  std::string path;
  absl::Status status;        // why its manifest cannot be read
  Verification verification;  // where it can
  bool whole() const { return status.ok() && verification.whole(); }
  std::string reason() const;  // why it is not whole; the first of several
};

struct Listing {
  std::string folder;
  bool read_all = true;             // else only sizes were looked at
  std::vector<Listed> checkpoints;  // newest first
  std::vector<std::string> unfinished;
};

void Print(const Listing& listing, bool as_json);
void Print(const std::string& path, const Verification& verification, bool as_json);
// All that differ; with `all` the equal ones too.
void Print(const std::vector<TensorDifference>& differences, bool all, bool as_json);

bool AllEqual(const std::vector<TensorDifference>& differences);

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_REPORT_H_
