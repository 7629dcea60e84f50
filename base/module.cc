#include "base/module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Folder of the library that this code was linked into, or of the program.
std::filesystem::path OwnFolder() {
  Dl_info info{};
  std::error_code error;
  if (dladdr(reinterpret_cast<void*>(&OwnFolder), &info) != 0 && info.dli_fname != nullptr) {
    auto found = std::filesystem::canonical(info.dli_fname, error);
    if (!error) return found.parent_path();
  }
  // A program that was started by a relative path, from another folder since.
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

}  // namespace

absl::StatusOr<void*> LoadModule(absl::string_view name, absl::string_view hint,
                                 absl::string_view path) {
  std::vector<std::string> candidates;
  if (!path.empty()) {
    candidates.emplace_back(path);
  } else {
    const std::filesystem::path folder = OwnFolder();
    for (const char* beside : {"../lib", "../../lib", "."}) {
      std::filesystem::path candidate = folder / beside / std::string(name);
      std::error_code error;
      if (std::filesystem::exists(candidate, error)) candidates.push_back(candidate.string());
    }
    candidates.emplace_back(name);
  }
  std::string reasons;
  for (const std::string& candidate : candidates) {
    if (void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
      return handle;
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", dlerror());
  }
  return absl::UnavailableError(absl::StrCat(reasons, ". ", hint));
}

}  // namespace weft
