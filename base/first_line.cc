#include "base/first_line.h"

#include <fstream>

#include "absl/strings/ascii.h"

namespace weft {

std::string FirstLine(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  absl::StripAsciiWhitespace(&line);
  return line;
}

}  // namespace weft
