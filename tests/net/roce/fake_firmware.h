// A program that answers as NVIDIA's mlxreg does (its documented output), with a register of its
// own for each PCI address, ahead of all others in PATH while it lives.
#ifndef WEFT_TESTS_NET_ROCE_FAKE_FIRMWARE_H_
#define WEFT_TESTS_NET_ROCE_FAKE_FIRMWARE_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/scratch_folder.h"

namespace weft::net {

class FakeFirmware {
 public:
  // `program`: "mlxreg" or "mstreg"; empty: neither is installed, nor any other program.
  explicit FakeFirmware(const std::string& program = "mlxreg") : path_(std::getenv("PATH")) {
    folder_.Write("supported", "0x00000001");
    if (!program.empty()) Install(program, kScript);
    setenv("PATH", (folder_.path() + (program.empty() ? "" : ":" + path_)).c_str(), 1);
  }
  ~FakeFirmware() { setenv("PATH", path_.c_str(), 1); }

  // Another program of that name.
  void Install(const std::string& name, const std::string& script) {
    folder_.Write(name, "#!/bin/sh\ncd " + folder_.path() + "\n" + script);
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  void Set(const std::string& pci, bool on) { folder_.Write("on." + pci, on ? "0x1" : "0x0"); }
  std::string Get(const std::string& pci) const { return Contents("on." + pci); }
  void SupportNothing() { folder_.Write("supported", "0x00000000"); }
  // What it was called with, a line each.
  std::string calls() const { return Contents("calls"); }

 private:
  static constexpr const char* kScript = R"(
echo "$@" >> calls
[ "$1" = -d ] && [ -e "on.$2" ] || { echo "-E- Failed to open device: $2." >&2; exit 1; }
file="on.$2"
for word in "$@"; do
  case $word in
    roce_adp_retrans_en=*) printf %s "${word#*=}" > "$file"; exit 0 ;;
  esac
done
echo "Sending access register...

Field Name                           | Data
========================================================
roce_adp_retrans_field_select        | $(cat supported)
roce_tx_window_field_select          | 0x00000001
roce_adp_retrans_en                  | $(cat "$file")
roce_tx_window_en                    | 0x00000001
========================================================"
)";

  std::string Contents(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  ScratchFolder folder_;
  std::string path_;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_ROCE_FAKE_FIRMWARE_H_
