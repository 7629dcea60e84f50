#include "base/machine_cache.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weft {

std::string ProcessorsName(std::istream& cpuinfo, long processors) {
  constexpr std::array kKeys = {
      "vendor_id",       "cpu family",       "model",       "stepping", "model name",  // x86
      "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"};
  std::map<std::string, std::string> values;
  for (std::string line;
       std::getline(cpuinfo, line) && !absl::StripAsciiWhitespace(line).empty();) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits(':', 1));
    values.emplace(absl::StripAsciiWhitespace(pair.first), pair.second);
  }
  std::string word;
  for (const char* key : kKeys) {
    for (const char letter : values[key]) {
      const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(letter));
      if (plain) word += letter;
      if (!plain && !word.empty() && word.back() != '-') word += '-';
    }
    if (!word.empty() && word.back() != '-') word += '-';
  }
  return absl::StrCat(word.empty() ? "unknown-" : word, "x", processors);
}

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
  std::ifstream cpuinfo("/proc/cpuinfo");
  return absl::StrCat(folder, "/weft/", kind, "/",
                      ProcessorsName(cpuinfo, sysconf(_SC_NPROCESSORS_CONF)));
}

}  // namespace weft
