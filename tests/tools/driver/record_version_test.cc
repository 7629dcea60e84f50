// What a driver does with the record of one of another version.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "collectives/store/server/store_journal.h"
#include "tests/collectives/memory_store.h"
#include "tests/scratch_folder.h"
#include "tools/driver/driver.h"
#include "tools/driver/records.h"
#include "tools/driver/state_folder.h"

namespace weft::driver {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

nlohmann::ordered_json Record() {
  DriverRecord record{.incarnation = 7, .policy = {.nodes = 2, .ranks_per_node = 1}};
  record.job = recovery::NewJob(record.policy, absl::UnixEpoch());
  return nlohmann::ordered_json::parse(ToJson(record));
}

// With what to do about it.
auto NamesVersions(int64_t found) {
  return AllOf(HasSubstr(absl::StrCat("has version ", found)), HasSubstr("reads version 1"),
               HasSubstr("weft-driver and weft-executor of the Weft that wrote it"),
               HasSubstr("--state-dir"));
}

TEST(RecordVersionTest, IsWrittenAndOneWithoutIsTheFirst) {
  nlohmann::ordered_json record = Record();
  EXPECT_EQ(record["version"], 1);
  record.erase("version");
  const auto read = ParseDriverRecord(record.dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->incarnation, 7);
}

TEST(RecordVersionTest, AnotherIsRefusedBeforeItsMembersAreLookedFor) {
  for (const int64_t version : {int64_t{0}, int64_t{2}, int64_t{-1}, int64_t{1} << 40}) {
    const nlohmann::json other = {{"version", version}};
    const absl::Status status = ParseDriverRecord(other.dump()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), NamesVersions(version));
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseDriverRecord(R"({"version": "1"})").status()));
}

TEST(RecordVersionTest, AMemberThatIsMissingSaysWhatToDo) {
  nlohmann::ordered_json record = Record();
  record["job"]["ranks"][0].erase("due");
  EXPECT_THAT(std::string(ParseDriverRecord(record.dump()).status().message()),
              AllOf(HasSubstr("a rank's state has no 'due' (version 1"), HasSubstr("--state-dir")));
}

TEST(RecordVersionTest, TheFileThatHoldsAnotherIsNamed) {
  using collectives::StoreJournal;
  using collectives::StoreRecord;
  const ScratchFolder folder;
  nlohmann::ordered_json other = Record();
  other["version"] = 2;
  {
    auto journal = StoreJournal::Open(folder / "state");
    ASSERT_TRUE(journal.ok()) << journal.status();
    std::string bytes;
    collectives::AppendRecord(bytes,
                              {StoreRecord::Kind::kValue, 1, 0, "weft", kStateKey, other.dump()});
    ASSERT_TRUE((*journal)->Replace(bytes).ok());
  }
  const absl::Status status = RecordInFolder(folder / "state", "weft").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(folder / "state/store.journal"), NamesVersions(2)));
}

TEST(RecordVersionTest, ADriverLeavesAnothersRecordAsItIs) {
  collectives::MemoryStore store;
  nlohmann::ordered_json other = Record();
  other["version"] = 2;
  ASSERT_TRUE(store.Set(kStateKey, other.dump()).ok());
  const absl::Status status =
      Driver::Open(&store, {.policy = {.nodes = 2, .ranks_per_node = 1}}, absl::UnixEpoch())
          .status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("the store's driver/state"), NamesVersions(2)));
  EXPECT_EQ(*store.Get(kStateKey, absl::ZeroDuration()), other.dump());
}

}  // namespace
}  // namespace weft::driver
