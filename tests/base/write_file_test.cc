#include "base/write_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/file_size_limit.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(WriteFileTest, ReplacesTheWholeFile) {
  std::string path = testing::TempDir() + "/write_file_test";
  ASSERT_TRUE(WriteFile(path, "something long\r\n").ok());
  ASSERT_TRUE(WriteFile(path, absl::string_view("a\0b", 3)).ok());
  EXPECT_EQ(Contents(path), std::string("a\0b", 3));
  std::filesystem::remove(path);
}

TEST(WriteFileTest, WhatCannotBeWrittenWholeLeavesTheFileAsItWas) {
  ScratchFolder folder;
  const std::string path = folder / "file", before(100, 'b');
  ASSERT_TRUE(WriteFile(path, before).ok());
  absl::Status written;
  {
    FileSizeLimit limit(1000);
    written = WriteFile(path, std::string(10000, 'a'));
  }
  EXPECT_FALSE(written.ok());
  EXPECT_THAT(written.message(), HasSubstr(path));
  EXPECT_EQ(Contents(path), before);
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);  // no draft beside it
}

// The limit of a file's size kills a process in the middle of a draft.
TEST(WriteFileDeathTest, AKilledProcessLeavesNothingBesideTheFile) {
  ScratchFolder folder;
  const int nameless = open(folder.path().c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600);
  if (nameless < 0) GTEST_SKIP() << "this file system has no files without a name";
  close(nameless);
  folder.Write("file", "before");
  for (const auto write : {&WriteFile, &WriteNewFile}) {
    const auto die = [&] {
      const rlimit none{0, 0}, least{1000, 1000};
      setrlimit(RLIMIT_CORE, &none);
      setrlimit(RLIMIT_FSIZE, &least);
      signal(SIGXFSZ, SIG_DFL);
      (void)write(folder / "file", std::string(10000, 'a'));
    };
    EXPECT_EXIT(die(), testing::KilledBySignal(SIGXFSZ), "");
    EXPECT_EQ(Contents(folder / "file"), "before");
    const std::filesystem::directory_iterator files(folder.path());
    EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  }
}

TEST(WriteFileTest, ANewFileTakesNobodysPlace) {
  ScratchFolder folder;
  const std::string draft = absl::StrCat("file.new-", getpid());
  folder.Write(draft, "half of anoth");
  ASSERT_TRUE(WriteNewFile(folder / "file", "first").ok());
  ASSERT_TRUE(WriteNewFile(folder / "file", "second").ok());
  EXPECT_EQ(Contents(folder / "file"), "first");
  EXPECT_EQ(Contents(folder / draft), "half of anoth");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);  // no draft of its own beside it
}

// As of a process of the same number on another host.
TEST(WriteFileTest, TheDraftOfAnotherWriterIsLeftAlone) {
  ScratchFolder folder;
  const std::string draft = absl::StrCat("file.new-", getpid());
  folder.Write(draft, "half of anoth");
  ASSERT_TRUE(WriteFile(folder / "file", "whole").ok());
  EXPECT_EQ(Contents(folder / "file"), "whole");
  EXPECT_EQ(Contents(folder / draft), "half of anoth");
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 2);
}

TEST(WriteFileTest, TheFileKeepsItsPermissions) {
  ScratchFolder folder;
  const std::string path = folder / "file";
  folder.Write("file", "before");
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(WriteFile(path, "after").ok());
  EXPECT_EQ(Contents(path), "after");
  struct stat now {};
  ASSERT_EQ(stat(path.c_str(), &now), 0);
  EXPECT_EQ(now.st_mode & 07777, 0640u);
}

TEST(WriteFileTest, AFileThatMayNotBeWrittenIsNotReplaced) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write every file";
  ScratchFolder folder;
  folder.Write("file", "before");
  ASSERT_EQ(chmod((folder / "file").c_str(), 0444), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(WriteFile(folder / "file", "after")));
  EXPECT_EQ(Contents(folder / "file"), "before");
}

TEST(WriteFileTest, LinksAndPipesStayWhatTheyAre) {
  ScratchFolder folder;
  folder.Write("file", "before");
  std::filesystem::create_symlink(folder / "file", folder / "soft");
  ASSERT_TRUE(WriteFile(folder / "soft", "by its link").ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "soft"));
  EXPECT_EQ(Contents(folder / "file"), "by its link");
  std::filesystem::create_hard_link(folder / "file", folder / "hard");
  ASSERT_TRUE(WriteFile(folder / "hard", "by its other name").ok());
  EXPECT_EQ(Contents(folder / "file"), "by its other name");

  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  ASSERT_TRUE(WriteFile(pipe, "through").ok());
  std::array<char, 16> got{};
  EXPECT_EQ(read(reader, got.data(), got.size()), 7);
  EXPECT_EQ(std::string(got.data()), "through");
  close(reader);
}

TEST(WriteFileTest, AFullDeviceIsAnErrorThatNamesTheFile) {
  absl::Status written = WriteFile("/dev/full", "x");
  EXPECT_TRUE(absl::IsResourceExhausted(written)) << written;
  EXPECT_THAT(written.message(), HasSubstr("/dev/full"));
}

TEST(WriteFileTest, AFolderThatIsNotThereIsAnErrorThatNamesTheFile) {
  absl::Status written = WriteFile("/nowhere/at/all", "x");
  EXPECT_TRUE(absl::IsNotFound(written)) << written;
  EXPECT_THAT(written.message(), HasSubstr("/nowhere/at/all"));
}

TEST(CheckOutputTest, WhatCannotBeWrittenIsNamedAndNothingIsTouched) {
  ScratchFolder folder;
  EXPECT_TRUE(CheckOutput("").ok());
  EXPECT_TRUE(CheckOutput("-").ok());
  EXPECT_TRUE(CheckOutput(folder / "new").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  folder.Write("file", "before");
  EXPECT_TRUE(CheckOutput(folder / "file").ok());
  EXPECT_EQ(Contents(folder / "file"), "before");
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(CheckOutput(pipe).ok());  // and does not wait for a reader
  std::filesystem::create_symlink(folder / "later", folder / "link");
  EXPECT_TRUE(CheckOutput(folder / "link").ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "later"));

  for (const std::string& path : {folder.path(), folder / "file/below", folder / "none/file"}) {
    const absl::Status refused = CheckOutput(path);
    EXPECT_FALSE(refused.ok()) << path;
    EXPECT_THAT(refused.message(), HasSubstr("write " + path));
    EXPECT_EQ(refused, WriteFile(path, "x"));
  }
}

TEST(CheckOutputTest, AFileOrAFolderThatMayNotBeWrittenIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write every file";
  ScratchFolder folder;
  folder.Write("file", "before");
  ASSERT_EQ(chmod((folder / "file").c_str(), 0400), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOutput(folder / "file")));
  ASSERT_EQ(chmod(folder.path().c_str(), 0500), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckOutput(folder / "new")));
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
}

TEST(WriteOutputTest, ADashIsStandardOutput) {
  testing::internal::CaptureStdout();
  absl::Status written = WriteOutput("-", "text\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "text\n");
  EXPECT_TRUE(written.ok()) << written;
}

}  // namespace
}  // namespace weft
