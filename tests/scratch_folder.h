// A folder that goes with its object: a /sys, a state directory, what a test writes.
#ifndef WEFT_TESTS_SCRATCH_FOLDER_H_
#define WEFT_TESTS_SCRATCH_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace weft {

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() { std::filesystem::remove_all(path_); }

  // With the folders above it.
  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  // `link` leads to the folder `target` of this folder.
  void Link(const std::string& link, const std::string& target) {
    std::filesystem::create_directories((path_ / link).parent_path());
    std::filesystem::create_directory_symlink(path_ / target, path_ / link);
  }
  std::string operator/(const std::string& file) const { return (path_ / file).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace weft

#endif  // WEFT_TESTS_SCRATCH_FOLDER_H_
