// The secret that the processes of a job share (JobSecret, net/transport.h), and its text: 64
// hexadecimal digits. 32 zero bytes stand for no secret: they are never made, and refused as a
// setting. No error message holds a secret, not even a wrong one.
#ifndef WEFT_NET_SECRET_H_
#define WEFT_NET_SECRET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "net/transport.h"

namespace weft::net {

inline constexpr const char* kSecretVariable = "WEFT_JOB_SECRET";

JobSecret NewJobSecret();  // from the kernel's generator
std::string SecretToHex(const JobSecret& secret);
// kInvalidArgument: not 64 hexadecimal digits, or all of them are 0. It says what is right.
absl::StatusOr<JobSecret> SecretFromHex(absl::string_view hex);
// This process's WEFT_JOB_SECRET; all zero: it is not set, or empty. kInvalidArgument names it.
absl::StatusOr<JobSecret> SecretFromEnvironment();

}  // namespace weft::net

#endif  // WEFT_NET_SECRET_H_
