// What the doctor has to say: a sentence about one thing, and what to do about it.
#ifndef WEFT_TOOLS_DOCTOR_FINDING_H_
#define WEFT_TOOLS_DOCTOR_FINDING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace weft::doctor {

enum class Severity : uint8_t {
  kNote,     // worth knowing
  kWarning,  // slower or more fragile than it could be
  kError,    // RDMA, or a job, will not work
};
const char* ToString(Severity severity);  // "note", "warning", "error"

struct Finding {
  Severity severity = Severity::kNote;
  std::string check;     // "gid-missing": stable, for scripts
  std::string subject;   // "mlx5_0 port 1"
  std::string sentence;  // what is so, with figures
  std::string advice;    // what to do; empty: nothing
};

using Findings = std::vector<Finding>;

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_FINDING_H_
