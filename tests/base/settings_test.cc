#include "base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "tests/scoped_variable.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr auto kTable = std::to_array<SettingRow>({
    {"wire.fast", SettingType::kBool, "false", "", "Hurries."},
    {"wire.lanes", SettingType::kInteger, "2", "1..64", "Lanes of the wire."},
    {"wire.delta", SettingType::kInteger, "0", "..", "Any whole number."},
    {"wire.share", SettingType::kReal, "0.5", "0..1", "A share."},
    {"wire.frame", SettingType::kBytes, "64KiB", "4KiB..1MiB", "The unit of cutting."},
    {"wire.patience", SettingType::kDuration, "5s", "100ms..", "How long to wait."},
    {"wire.name", SettingType::kText, "", "", "Any text."},
    {"wire.mode", SettingType::kChoice, "auto", "auto|ring|direct", "Which way."},
});

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(Settings, StartAtTheirDefaults) {
  Settings settings(kTable);
  EXPECT_FALSE(settings.Bool("wire.fast"));
  EXPECT_EQ(settings.Integer("wire.lanes"), 2);
  EXPECT_EQ(settings.Real("wire.share"), 0.5);
  EXPECT_EQ(settings.ByteCount("wire.frame"), KiB(64));
  EXPECT_EQ(settings.Duration("wire.patience"), absl::Seconds(5));
  EXPECT_EQ(settings.Text("wire.name"), "");
  EXPECT_EQ(settings.Text("wire.mode"), "auto");
  EXPECT_TRUE(settings.IsDefault("wire.lanes"));
  EXPECT_EQ(settings.Origin("wire.lanes"), "default");
}

TEST(Settings, TakeEveryTypeAndRememberTextAndOrigin) {
  Settings settings(kTable);
  ASSERT_TRUE(settings.Set("wire.fast", "Yes", "a").ok());
  ASSERT_TRUE(settings.Set("wire.lanes", "64", "b").ok());
  ASSERT_TRUE(settings.Set("wire.delta", "-7", "c").ok());
  ASSERT_TRUE(settings.Set("wire.share", "0.25", "d").ok());
  ASSERT_TRUE(settings.Set("wire.frame", "4KiB", "e").ok());
  ASSERT_TRUE(settings.Set("wire.patience", "2m30s", "f").ok());
  ASSERT_TRUE(settings.Set("wire.name", "a=b c", "g").ok());
  ASSERT_TRUE(settings.Set("wire.mode", "ring", "h").ok());
  EXPECT_TRUE(settings.Bool("wire.fast"));
  EXPECT_EQ(settings.Integer("wire.lanes"), 64);
  EXPECT_EQ(settings.Integer("wire.delta"), -7);
  EXPECT_EQ(settings.Real("wire.share"), 0.25);
  EXPECT_EQ(settings.ByteCount("wire.frame"), KiB(4));
  EXPECT_EQ(settings.Duration("wire.patience"), absl::Seconds(150));
  EXPECT_EQ(settings.Text("wire.name"), "a=b c");
  EXPECT_EQ(settings.Text("wire.mode"), "ring");
  EXPECT_EQ(settings.ValueText("wire.patience"), "2m30s");
  EXPECT_EQ(settings.Origin("wire.patience"), "f");
  EXPECT_FALSE(settings.IsDefault("wire.patience"));
}

TEST(Settings, UnderstandEveryWordForTrueAndFalse) {
  Settings settings(kTable);
  for (const char* word : {"1", "true", "TRUE", "yes", "on"}) {
    ASSERT_TRUE(settings.Set("wire.fast", word, "test").ok()) << word;
    EXPECT_TRUE(settings.Bool("wire.fast")) << word;
  }
  for (const char* word : {"0", "false", "No", "off"}) {
    ASSERT_TRUE(settings.Set("wire.fast", word, "test").ok()) << word;
    EXPECT_FALSE(settings.Bool("wire.fast")) << word;
  }
}

TEST(Settings, ABadValueSaysWhereWhatAndWhatWouldBeRight) {
  struct Case {
    const char* name;
    const char* value;
    const char* message;
  };
  for (const Case& c : {
           Case{"wire.fast", "maybe",
                "--set: setting wire.fast = \"maybe\": must be true or false"},
           Case{"wire.lanes", "two", "--set: setting wire.lanes = \"two\": must be a whole number"},
           Case{"wire.lanes", "2.5", "--set: setting wire.lanes = \"2.5\": must be a whole number"},
           Case{"wire.lanes", "", "--set: setting wire.lanes = \"\": must be a whole number"},
           Case{"wire.lanes", "0", "--set: setting wire.lanes = \"0\": must lie in 1..64"},
           Case{"wire.lanes", "65", "--set: setting wire.lanes = \"65\": must lie in 1..64"},
           Case{"wire.share", "half", "--set: setting wire.share = \"half\": must be a number"},
           Case{"wire.share", "nan", "--set: setting wire.share = \"nan\": must be a number"},
           Case{"wire.share", "1.01", "--set: setting wire.share = \"1.01\": must lie in 0..1"},
           Case{"wire.frame", "64KeB",
                "--set: setting wire.frame = \"64KeB\": \"64KeB\" is not a size; write a number "
                "with B, KiB, MiB, GiB, KB, MB or GB, as in 64KiB"},
           Case{"wire.frame", "2MiB",
                "--set: setting wire.frame = \"2MiB\": must lie in 4KiB..1MiB"},
           Case{"wire.patience", "5",
                "--set: setting wire.patience = \"5\": must be a duration such as 200us, 100ms, 5s "
                "or 2m"},
           Case{"wire.patience", "99ms",
                "--set: setting wire.patience = \"99ms\": must lie in 100ms.."},
           Case{"wire.mode", "tree",
                "--set: setting wire.mode = \"tree\": must be one of auto, ring, direct"},
       }) {
    Settings settings(kTable);
    absl::Status status = settings.Set(c.name, c.value, "--set");
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.name;
    EXPECT_EQ(Message(status), c.message);
    EXPECT_TRUE(settings.IsDefault(c.name)) << "a refused value must change nothing";
  }
}

TEST(Settings, AnOpenRangeHasNoEnd) {
  Settings settings(kTable);
  EXPECT_TRUE(settings.Set("wire.patience", "1000h", "test").ok());
  EXPECT_TRUE(settings.Set("wire.delta", "-9223372036854775808", "test").ok());
}

TEST(Settings, AnUnknownNameIsAnsweredWithTheNearest) {
  Settings settings(kTable);
  absl::Status status = settings.Set("wire.lnes", "3", "demo.toml:12");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(Message(status),
            "demo.toml:12: no setting is named \"wire.lnes\"; did you mean wire.lanes?");
  EXPECT_EQ(Message(settings.Set("z", "3", "--set")), "--set: no setting is named \"z\"");
}

TEST(SetPair, CutsAtTheFirstEqualsSign) {
  Settings settings(kTable);
  EXPECT_TRUE(settings.SetPair(" wire.lanes = 3 ", "--set").ok());
  EXPECT_EQ(settings.Integer("wire.lanes"), 3);
  EXPECT_TRUE(settings.SetPair("wire.name=a=b", "--set").ok());
  EXPECT_EQ(settings.Text("wire.name"), "a=b");
  EXPECT_EQ(Message(settings.SetPair("wire.lanes", "--set")),
            "--set: \"wire.lanes\" is no setting; write name=value");
}

TEST(Settings, TheLastToSetAValueWins) {
  Settings settings(kTable);
  ScopedVariable lanes("WEFT_WIRE_LANES", "5");
  ScopedVariable mode("WEFT_WIRE_MODE", "ring");
  ASSERT_TRUE(settings.Set("wire.lanes", "4", "file.toml:1").ok());
  ASSERT_TRUE(settings.SetFromEnvironment(/*strict=*/true).ok());
  ASSERT_TRUE(settings.SetPair("wire.mode=direct", "--set").ok());
  EXPECT_EQ(settings.Integer("wire.lanes"), 5);
  EXPECT_EQ(settings.Origin("wire.lanes"), "environment");
  EXPECT_EQ(settings.Text("wire.mode"), "direct");
  EXPECT_EQ(settings.Origin("wire.mode"), "--set");
}

TEST(Environment, ABadValueIsAnError) {
  Settings settings(kTable);
  ScopedVariable lanes("WEFT_WIRE_LANES", "many");
  EXPECT_EQ(Message(settings.SetFromEnvironment(true)),
            "environment: setting wire.lanes = \"many\": must be a whole number");
}

TEST(Environment, AnUnknownNameIsAnErrorOnlyWhenStrict) {
  Settings settings(kTable);
  ScopedVariable lanes("WEFT_WIRE_LNES", "3");
  EXPECT_EQ(Message(settings.SetFromEnvironment(/*strict=*/true)),
            "environment: no setting is named WEFT_WIRE_LNES; did you mean WEFT_WIRE_LANES?");
  EXPECT_TRUE(settings.SetFromEnvironment(/*strict=*/false).ok());
}

TEST(Environment, WhatTheLauncherHandsOverIsNoSetting) {
  Settings settings(kTable);
  ScopedVariable job("WEFT_JOB_ID", "7");
  ScopedVariable store("WEFT_STORE", "127.0.0.1:1234");
  ScopedVariable generation("WEFT_GENERATION", "1");
  ScopedVariable recover("WEFT_RECOVER", "3");
  ScopedVariable last_end("WEFT_LAST_END", "exited with status 1");
  EXPECT_TRUE(settings.SetFromEnvironment(/*strict=*/true).ok());
}

TEST(Environment, EverySettingOfTheLibraryCanBeSet) {
  for (const SettingRow& row : LibrarySettings()) {
    ScopedVariable variable(EnvironmentName(row.name), std::string(row.standard));
    absl::StatusOr<Settings> settings = Settings::FromEnvironment();
    ASSERT_TRUE(settings.ok()) << settings.status();
    EXPECT_EQ(settings->Origin(row.name), "environment") << row.name;
  }
}

TEST(SettingsDeath, AskingForWhatIsNotThereIsOurOwnFault) {
  Settings settings(kTable);
  EXPECT_DEATH(settings.Integer("wire.none"), "setting wire.none is in no table");
  EXPECT_DEATH(settings.Integer("wire.fast"), "setting wire.fast has another type");
}

TEST(NearestName, PrefersTheSmallestDistanceAndGivesUpOnFarOnes) {
  std::vector<std::string> names = {"tcp.sockets", "tcp.interface", "shm.slots"};
  EXPECT_EQ(NearestName("tcp.sokets", names), "tcp.sockets");
  EXPECT_EQ(NearestName("shm.slot", names), "shm.slots");
  EXPECT_EQ(NearestName("quantum", names), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

TEST(LibrarySettings, NamesAreUniqueAlsoInTheEnvironmentAndSentencesAreSentences) {
  std::set<std::string> environment;
  for (const SettingRow& row : LibrarySettings()) {
    EXPECT_TRUE(environment.insert(EnvironmentName(row.name)).second) << row.name;
    EXPECT_TRUE(absl::EndsWith(row.sentence, ".")) << row.name;
  }
}

TEST(SettingsMarkdown, GroupsByTheFirstWord) {
  std::string page = SettingsMarkdown(kTable);
  EXPECT_THAT(page, HasSubstr("\n## wire\n"));
  EXPECT_THAT(page, HasSubstr("| `wire.mode` | `WEFT_WIRE_MODE` | choice | `auto` | auto, ring, "
                              "direct | Which way. |\n"));
  EXPECT_THAT(page,
              HasSubstr("| `wire.name` | `WEFT_WIRE_NAME` | text | empty |  | Any text. |\n"));
}

}  // namespace
}  // namespace weft
