#include "base/host_name.h"

#include <unistd.h>

#include <array>

namespace weft {

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);  // Linux fails only where the buffer is too short
  return name.data();
}

}  // namespace weft
