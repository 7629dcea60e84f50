// What both ends of `weft-bw link --key @FILE` know: the file holds a job's secret (64 hexadecimal
// digits), or a passphrase. An attacker who poses as one end to the other can try passphrases
// offline afterwards; so a passphrase is long, and each try takes Argon2id's memory and time.
#ifndef WEFT_TOOLS_BW_LINK_KEY_H_
#define WEFT_TOOLS_BW_LINK_KEY_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "net/transport.h"

namespace weft::link_bw {

inline constexpr size_t kPassphraseBytesMin = 16;
inline constexpr size_t kPassphraseBytesMax = 1024;

// kInvalidArgument: too short, too long, or of fewer than 6 different characters.
absl::StatusOr<net::JobSecret> SecretFromPassphrase(absl::string_view passphrase);

// `option`: "@FILE". White space at the end of the file does not count. kInvalidArgument: the
// option is no "@FILE", other users may read the file, or it holds no key; no message holds one.
absl::StatusOr<net::JobSecret> SecretFromKeyFile(const std::string& option);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_KEY_H_
