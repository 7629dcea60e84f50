#include "base/machine_cache.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// The processors' name and number.
std::string Fingerprint() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name = "unknown";
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) != 0) continue;
    name = line.substr(line.find(':') + 1);
    break;
  }
  std::string word;
  for (char letter : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(letter)) != 0;
    if (plain) word += letter;
    if (!plain && !word.empty() && word.back() != '-') word += '-';
  }
  return absl::StrCat(word, word.empty() || word.back() == '-' ? "" : "-", "x",
                      sysconf(_SC_NPROCESSORS_CONF));
}

}  // namespace

std::string MachineCacheFile(absl::string_view kind) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string folder;
  if (cache != nullptr && cache[0] == '/') {
    folder = cache;
  } else if (home != nullptr && home[0] == '/') {
    folder = absl::StrCat(home, "/.cache");
  } else {
    return "";
  }
  return absl::StrCat(folder, "/weft/", kind, "/", Fingerprint());
}

}  // namespace weft
