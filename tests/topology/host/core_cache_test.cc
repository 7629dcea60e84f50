#include "topology/host/core_cache.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/scratch_folder.h"

namespace weft::topology {
namespace {

void WriteCache(ScratchFolder& folder, int index, const char* level, const char* type,
                const char* size) {
  const std::string name = absl::StrCat("index", index, "/");
  folder.Write(name + "level", absl::StrCat(level, "\n"));
  folder.Write(name + "type", absl::StrCat(type, "\n"));
  folder.Write(name + "size", absl::StrCat(size, "\n"));
}

TEST(CoreCacheTest, IsTheSecondLevelForData) {
  ScratchFolder folder;
  WriteCache(folder, 0, "1", "Data", "48K");
  WriteCache(folder, 1, "2", "Instruction", "512K");
  WriteCache(folder, 2, "2", "Unified", "2048K");
  WriteCache(folder, 3, "3", "Unified", "266240K");
  EXPECT_EQ(CoreCache(folder.path()), Bytes(2 << 20));
}

TEST(CoreCacheTest, IsUnknownWhereTheKernelTellsNone) {
  ScratchFolder folder;
  EXPECT_EQ(CoreCache(folder / "nowhere"), std::nullopt);
  WriteCache(folder, 0, "1", "Data", "48K");
  WriteCache(folder, 1, "2", "Unified", "0K");
  EXPECT_EQ(CoreCache(folder.path()), std::nullopt);
  WriteCache(folder, 1, "2", "Unified", "");
  EXPECT_EQ(CoreCache(folder.path()), std::nullopt);
}

}  // namespace
}  // namespace weft::topology
