#include "tools/bw/link/key.h"

#include <fcntl.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "net/secret.h"

namespace weft::link_bw {
namespace {

constexpr size_t kCharactersMin = 6;
// The same on both ends, which have nothing else in common yet; its length is Argon2's.
constexpr char kSalt[] = "weft-bw link key";
static_assert(sizeof(kSalt) - 1 == crypto_pwhash_SALTBYTES);

absl::StatusOr<std::string> ReadKey(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) {
    return absl::InvalidArgumentError(ErrnoStatus(errno, "open it").message());
  }
  if (S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("other users may read it (mode %04o); right is chmod 600",
                        static_cast<unsigned>(info.st_mode & 07777)));
  }
  // One more than is right, to see that there are more.
  std::array<char, kPassphraseBytesMax + 2> bytes;
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(file.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::InvalidArgumentError(ErrnoStatus(errno, "read it").message());
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  std::string key(bytes.data(), size);
  sodium_memzero(bytes.data(), bytes.size());
  absl::StripTrailingAsciiWhitespace(&key);
  return key;
}

}  // namespace

absl::StatusOr<net::JobSecret> SecretFromPassphrase(absl::string_view passphrase) {
  const std::set<char> characters(passphrase.begin(), passphrase.end());
  if (passphrase.size() < kPassphraseBytesMin || characters.size() < kCharactersMin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a key of ", passphrase.size(), " characters, ", characters.size(),
        " of them different, can be guessed; right are 64 hexadecimal digits (openssl rand -hex "
        "32), or a passphrase of at least ",
        kPassphraseBytesMin, " characters, ", kCharactersMin, " of them different"));
  }
  if (passphrase.size() > kPassphraseBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key of more than ", kPassphraseBytesMax, " characters"));
  }
  net::JobSecret secret{};
  WEFT_CHECK(sodium_init() >= 0, "libsodium finds no source of randomness");
  if (crypto_pwhash(secret.data(), secret.size(), passphrase.data(), passphrase.size(),
                    reinterpret_cast<const unsigned char*>(kSalt), crypto_pwhash_OPSLIMIT_MODERATE,
                    crypto_pwhash_MEMLIMIT_MODERATE, crypto_pwhash_ALG_ARGON2ID13) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory to stretch a passphrase, ", crypto_pwhash_MEMLIMIT_MODERATE >> 20,
                     " MiB; a key of 64 hexadecimal digits needs none"));
  }
  return secret;
}

absl::StatusOr<net::JobSecret> SecretFromKeyFile(const std::string& option) {
  if (option.size() < 2 || option[0] != '@') {
    return absl::InvalidArgumentError(absl::StrCat(
        "--key takes a file, --key @FILE, since every user of a host may see arguments; or give "
        "the key as ",
        net::kSecretVariable, ", in the environment"));
  }
  const std::string path = option.substr(1);
  auto secret = [&]() -> absl::StatusOr<net::JobSecret> {
    WEFT_ASSIGN_OR_RETURN(std::string key, ReadKey(path));
    if (absl::StatusOr<net::JobSecret> secret = net::SecretFromHex(key); secret.ok()) {
      return secret;
    }
    return SecretFromPassphrase(key);
  }();
  if (!secret.ok()) return Annotate(secret.status(), absl::StrCat("--key ", option));
  return secret;
}

}  // namespace weft::link_bw
