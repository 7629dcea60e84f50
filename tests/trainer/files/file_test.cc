#include "trainer/files/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "base/file_descriptor.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(AtomicFile, AppearsUnderItsNameOnlyAtCommit) {
  ScratchFolder folder;
  const std::string path = folder / "a";
  ASSERT_TRUE(WriteFileAtomically(path, "old").ok());
  auto file = AtomicFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("new").ok());
  EXPECT_EQ(*ReadFile(path), "old");
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_EQ(*ReadFile(path), "new");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(AtomicFile, LeavesNothingBehindWhenDropped) {
  ScratchFolder folder;
  {
    auto file = AtomicFile::Create(folder / "a");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->Append("half").ok());
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(AtomicFile, HasOneWriterAtATime) {
  ScratchFolder folder;
  const std::string path = folder / "a";
  {
    auto first = AtomicFile::Create(path);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(first->Append("first").ok());
    const absl::Status second = AtomicFile::Create(path).status();
    EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
    EXPECT_THAT(std::string(second.message()), HasSubstr(path + ".tmp is being written"));
    ASSERT_TRUE(first->Commit().ok());
    EXPECT_EQ(*ReadFile(path), "first");
    EXPECT_TRUE(WriteFileAtomically(path, "after the commit").ok());
    auto dropped = AtomicFile::Create(path);
    ASSERT_TRUE(dropped.ok()) << dropped.status();
  }
  EXPECT_TRUE(WriteFileAtomically(path, "after a writer that gave up").ok());
  EXPECT_EQ(*ReadFile(path), "after a writer that gave up");
}

// As the server of NFSv3 keeps the lock of a host that has died: nobody waits for it, and what the
// error says to do helps.
TEST(AtomicFile, ALockThatNobodyGivesBackEndsWithTheFile) {
  ScratchFolder folder;
  const std::string path = folder / "a", draft = path + ".tmp";
  const FileDescriptor dead(open(draft.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(flock(dead.get(), LOCK_EX), 0);
  const absl::Status locked = WriteFileAtomically(path, "next");
  EXPECT_TRUE(absl::IsAlreadyExists(locked)) << locked;
  EXPECT_THAT(std::string(locked.message()), HasSubstr("delete " + draft));
  ASSERT_TRUE(std::filesystem::remove(draft));
  EXPECT_TRUE(WriteFileAtomically(path, "next").ok());
  EXPECT_EQ(*ReadFile(path), "next");
}

// As a writer leaves it that is killed.
TEST(AtomicFile, EmptiesWhatAnEarlierWriterLeftBehind) {
  ScratchFolder folder;
  const std::string path = folder / "a";
  ASSERT_TRUE(WriteFileAtomically(path + ".tmp", "more than the next writer has").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "next").ok());
  EXPECT_EQ(*ReadFile(path), "next");
}

TEST(AtomicFile, KeepsTheOrderOfSmallAndLargePieces) {
  ScratchFolder folder;
  const std::string path = folder / "a";
  std::string large(3 << 20, 'x');
  auto file = AtomicFile::Create(path);
  ASSERT_TRUE(file.ok());
  std::string expected;
  for (const std::string& piece : {std::string("first"), large, std::string("last"), large}) {
    ASSERT_TRUE(file->Append(piece).ok());
    expected += piece;
    EXPECT_EQ(file->size(), static_cast<int64_t>(expected.size()));
  }
  ASSERT_TRUE(file->Commit().ok());
  EXPECT_TRUE(*ReadFile(path) == expected);
  auto mapped = MappedFile::Open(path);
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE(Text(*mapped) == expected);
}

TEST(MappedFile, MapsAnEmptyFileAndNamesAMissingOne) {
  ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "empty", "").ok());
  auto empty = MappedFile::Open(folder / "empty");
  ASSERT_TRUE(empty.ok()) << empty.status();
  EXPECT_TRUE(empty->bytes().empty());
  auto missing = MappedFile::Open(folder / "missing");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(folder / "missing"));
  EXPECT_FALSE(MappedFile::Open(folder.path()).ok());
}

TEST(MappedFile, SurvivesTheReplacementOfItsFile) {
  ScratchFolder folder;
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "old").ok());
  auto mapped = MappedFile::Open(folder / "a");
  ASSERT_TRUE(mapped.ok());
  ASSERT_TRUE(WriteFileAtomically(folder / "a", "new and longer").ok());
  EXPECT_EQ(Text(*mapped), "old");
}

TEST(ReadInChunks, IsGivenUpBeforeTheNextChunk) {
  ScratchFolder folder;
  const std::string path = folder / "a";
  ASSERT_TRUE(WriteFileAtomically(path, std::string(3 << 20, 'x')).ok());
  std::atomic<bool> gives_up{false};
  size_t taken = 0;
  const auto take = [&](absl::Span<const std::byte> bytes) { taken += bytes.size(); };
  ASSERT_TRUE(ReadInChunks(path, take, gives_up).ok());
  EXPECT_EQ(taken, size_t{3} << 20);
  int chunks = 0;
  const absl::Status status = ReadInChunks(
      path,
      [&](absl::Span<const std::byte>) {
        ++chunks;
        gives_up.store(true);
      },
      gives_up);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(chunks, 1);
}

TEST(Folders, ParentIsTheDotForABareName) {
  EXPECT_EQ(ParentFolder("a/b"), "a");
  EXPECT_EQ(ParentFolder("b"), ".");
}

}  // namespace
}  // namespace weft::train
