#include "collectives/store/server/store_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/file_size_limit.h"
#include "tests/scratch_folder.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three records, and what a next server reads of them once the file has suffered.
class StoreJournalTest : public testing::Test {
 protected:
  StoreJournalTest() {
    for (const char* key : {"a", "b", "c"}) {
      StoreRecord record{StoreRecord::Kind::kValue, 1, 0, "job", key, std::string(100, 'v')};
      AppendRecord(whole_, record);
      if (record_bytes_ == 0) record_bytes_ = whole_.size();
    }
  }
  void Hold(const std::string& bytes) { folder_.Write("store.journal", bytes); }
  std::string File(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  absl::Status Read() {
    keys_.clear();
    auto journal = StoreJournal::Open(folder_.path());
    if (!journal.ok()) return journal.status();
    return (*journal)->Read([&](const StoreRecord& record) {
      keys_.push_back(record.key);
      return absl::OkStatus();
    });
  }

  ScratchFolder folder_;
  std::string whole_;
  size_t record_bytes_ = 0;
  std::vector<std::string> keys_;
};

TEST_F(StoreJournalTest, WhatWasWrittenIsRead) {
  {
    auto journal = StoreJournal::Open(folder_.path());
    ASSERT_TRUE(journal.ok()) << journal.status();
    ASSERT_TRUE((*journal)->Append(whole_).ok());
  }
  ASSERT_TRUE(Read().ok());
  EXPECT_THAT(keys_, ElementsAre("a", "b", "c"));
  EXPECT_EQ(File("store.journal.cut"), "");
}

TEST_F(StoreJournalTest, ARecordThatWasCutOffEndsIt) {
  Hold(whole_.substr(0, whole_.size() - 10));
  ASSERT_TRUE(Read().ok());
  EXPECT_THAT(keys_, ElementsAre("a", "b"));
  EXPECT_EQ(File("store.journal"), whole_.substr(0, 2 * record_bytes_));
  EXPECT_EQ(File("store.journal.cut"), whole_.substr(2 * record_bytes_, record_bytes_ - 10));
  Hold(whole_.substr(0, 20));  // the very first
  ASSERT_TRUE(Read().ok());
  EXPECT_THAT(keys_, IsEmpty());
}

TEST_F(StoreJournalTest, WhatFollowsDamageIsKept) {
  std::string damaged = whole_;
  damaged[record_bytes_ + 50] ^= 1;
  Hold(damaged);
  ASSERT_TRUE(Read().ok());
  EXPECT_THAT(keys_, ElementsAre("a"));
  EXPECT_EQ(File("store.journal.cut"), damaged.substr(record_bytes_));
}

TEST_F(StoreJournalTest, NothingOfItIsForOthersToRead) {
  folder_.Write("store.journal.cut", "of an earlier time");
  std::filesystem::permissions(folder_ / "store.journal.cut", std::filesystem::perms(0644));
  const mode_t before = umask(0);
  Hold(whole_.substr(0, whole_.size() - 10));
  EXPECT_TRUE(Read().ok());
  auto journal = StoreJournal::Open(folder_.path());
  EXPECT_TRUE(journal.ok() && (*journal)->Replace(whole_).ok());
  umask(before);
  for (const char* name : {"store.journal", "store.journal.cut"}) {
    EXPECT_EQ(std::filesystem::status(folder_ / name).permissions(), std::filesystem::perms(0600))
        << name;
  }
}

TEST_F(StoreJournalTest, AfterItWasInvalidatedNothingIsRead) {
  {
    auto journal = StoreJournal::Open(folder_.path());
    ASSERT_TRUE(journal.ok()) << journal.status();
    ASSERT_TRUE((*journal)->Append(whole_).ok());
    ASSERT_TRUE((*journal)->Invalidate().ok());
    EXPECT_TRUE(absl::IsAlreadyExists(Read())) << "still held";
  }
  ASSERT_TRUE(Read().ok());
  EXPECT_THAT(keys_, IsEmpty());
}

// A snapshot that does not fit beside the journal.
TEST_F(StoreJournalTest, WhatCannotBeReplacedStays) {
  auto journal = StoreJournal::Open(folder_.path());
  ASSERT_TRUE(journal.ok()) << journal.status();
  ASSERT_TRUE((*journal)->Append(whole_.substr(0, record_bytes_)).ok());
  {
    FileSizeLimit limit(record_bytes_);
    EXPECT_FALSE((*journal)->Replace(whole_).ok());
  }
  ASSERT_TRUE((*journal)->Append(whole_.substr(record_bytes_)).ok());
  EXPECT_EQ(File("store.journal"), whole_);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "store.journal.new"));
}

TEST_F(StoreJournalTest, WhatIsNoJournalIsLeftAlone) {
  std::string text;
  for (int line = 0; line < 200; ++line) text += "not a journal\n";
  std::string damaged = whole_;
  damaged[20] ^= 1;
  for (const std::string& bytes : {text, damaged}) {
    Hold(bytes);
    const absl::Status status = Read();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(folder_ / "store.journal"), HasSubstr("move it away")));
    EXPECT_EQ(File("store.journal"), bytes);
  }
}

}  // namespace
}  // namespace weft::collectives
