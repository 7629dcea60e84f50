// Small files of one line, such as the kernel's in /sys.
#ifndef WEFT_BASE_FIRST_LINE_H_
#define WEFT_BASE_FIRST_LINE_H_

#include <filesystem>
#include <string>

namespace weft {

// Without white space around it; empty where there is no such file, or it cannot be read.
std::string FirstLine(const std::filesystem::path& path);

}  // namespace weft

#endif  // WEFT_BASE_FIRST_LINE_H_
