#include "base/memory_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

// Kernels that are set to make no other (vm.memfd_noexec 2) make this.
TEST(MemoryFile, IsNotExecutableWhereTheKernelKnowsThatAndMayBeSealed) {
  constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL
  constexpr int kSealExec = 0x20;      // F_SEAL_EXEC
  const FileDescriptor file = MakeMemoryFile("test");
  ASSERT_TRUE(file);
  const bool is_known = !!FileDescriptor(memfd_create("test", MFD_CLOEXEC | kNoExecSeal));
  EXPECT_EQ((fcntl(file.get(), F_GET_SEALS) & kSealExec) != 0, is_known);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE), 0);
}

}  // namespace
}  // namespace weft
