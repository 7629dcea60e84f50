// A folder of a test's own, removed with all it holds when the test ends. In memory (/dev/shm)
// where that is possible: tests that write thousands of files then do not wait for a disk.
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
    std::string name = "/dev/shm/weft-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      name = (std::filesystem::temp_directory_path() / "weft-test-XXXXXX").string();
      if (mkdtemp(name.data()) == nullptr) std::abort();
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // With the folders above it.
  void Write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(*this / file).parent_path());
    std::ofstream(*this / file) << text;
  }
  // `link` leads to the folder `target` of this folder.
  void Link(const std::string& link, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(*this / link).parent_path());
    std::filesystem::create_directory_symlink(*this / target, *this / link);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace weft

#endif  // WEFT_TESTS_SCRATCH_FOLDER_H_
