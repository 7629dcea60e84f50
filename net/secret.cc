#include "net/secret.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/handshake.h"

namespace weft::net {
namespace {

constexpr const char* kRight = "right are 64 hexadecimal digits, as from openssl rand -hex 32";

}  // namespace

JobSecret NewJobSecret() { return NewNonce(); }

std::string SecretToHex(const JobSecret& secret) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(secret.data()), secret.size()));
}

absl::StatusOr<JobSecret> SecretFromHex(absl::string_view hex) {
  JobSecret secret{};
  if (hex.size() != 2 * secret.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job's secret of ", hex.size(), " characters; ", kRight));
  }
  if (!std::all_of(hex.begin(), hex.end(), [](char c) { return absl::ascii_isxdigit(c); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job's secret has characters that are no hexadecimal digits; ", kRight));
  }
  std::string bytes = absl::HexStringToBytes(hex);
  std::copy(bytes.begin(), bytes.end(), secret.begin());
  if (secret == JobSecret{}) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job's secret of nothing but zeros, which everybody knows; ", kRight));
  }
  return secret;
}

absl::StatusOr<JobSecret> SecretFromEnvironment() {
  const char* hex = std::getenv(kSecretVariable);
  if (hex == nullptr || *hex == '\0') return JobSecret{};
  absl::StatusOr<JobSecret> secret = SecretFromHex(hex);
  if (!secret.ok()) return Annotate(secret.status(), kSecretVariable);
  return secret;
}

}  // namespace weft::net
