// weft-data and weft-plot as a user calls them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_join.h"
#include "base/read_file.h"
#include "tests/scratch_folder.h"
#include "tests/trainer/data/sample_text.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

struct Result {
  int exit_code = -1;
  std::string out;    // stdout
  std::string error;  // stderr
};

class ProgramTest : public ::testing::Test {
 protected:
  // `command` is a shell line; $WEFT_BIN is where the programs are.
  Result Run(const std::string& command) {
    std::string line = "cd " + folder_.path() + " && { " + command + "; } >out 2>error";
    int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, *ReadFile(folder_ / "out"),
            *ReadFile(folder_ / "error")};
  }
  void SetUp() override {
    ASSERT_NE(std::getenv("WEFT_BIN"), nullptr) << "run by ctest";
    ASSERT_TRUE(
        WriteFileAtomically(folder_ / "text.txt", absl::StrJoin(SampleLines(3000), "\n\n")).ok());
  }
  ScratchFolder folder_;
};

TEST_F(ProgramTest, PreparesInspectsEncodesAndDecodes) {
  Result prepared =
      Run("gzip text.txt && $WEFT_BIN/weft-data prepare --input text.txt.gz --output-prefix d/text "
          "--vocab-size 500 --validation-fraction 0.1 --threads 2");
  ASSERT_EQ(prepared.exit_code, 0) << prepared.error;
  EXPECT_THAT(prepared.out, HasSubstr("unigram loss"));
  EXPECT_THAT(prepared.error, HasSubstr("learn tokenizer"));

  Result inspected = Run("$WEFT_BIN/weft-data inspect d/text_train --json --documents 2");
  ASSERT_EQ(inspected.exit_code, 0) << inspected.error;
  auto row = nlohmann::json::parse(inspected.out, nullptr, false);
  ASSERT_TRUE(row.is_object()) << inspected.out;
  EXPECT_EQ(row["token_type"], "u16");
  ASSERT_EQ(row["first_texts"].size(), 2U);
  std::string first = row["first_texts"][0].get<std::string>();
  EXPECT_EQ(first.substr(0, first.find('\n')), SampleLines(1)[0]);
  EXPECT_THAT(Run("$WEFT_BIN/weft-data inspect d/text_train").out, HasSubstr("token type  u16"));

  Result round_trip =
      Run("printf 'the network\\nof  cats 12\\n' | $WEFT_BIN/weft-data encode --tokenizer "
          "d/text.model | "
          "tee ids | $WEFT_BIN/weft-data decode --tokenizer d/text.model");
  EXPECT_EQ(round_trip.out, "the network\nof  cats 12\n") << round_trip.error;
  EXPECT_THAT(*ReadFile(folder_ / "ids"), ::testing::MatchesRegex("[0-9 ]+\n[0-9 ]+\n"));
}

// A folder as its standard input.
TEST_F(ProgramTest, AnInputThatCannotBeReadIsNoEmptyOne) {
  ASSERT_EQ(Run("$WEFT_BIN/weft-data prepare --input text.txt --output-prefix d --vocab-size 500")
                .exit_code,
            0);
  for (const std::string command : {"encode", "decode"}) {
    const Result read = Run("$WEFT_BIN/weft-data " + command + " --tokenizer d.model <.");
    EXPECT_EQ(read.exit_code, 1) << command;
    EXPECT_THAT(read.error, HasSubstr("read standard input: Is a directory"));
  }
}

TEST_F(ProgramTest, InspectFindsTokensThatAreNotInTheVocabulary) {
  Result prepared =
      Run("$WEFT_BIN/weft-data prepare --input text.txt --output-prefix d --vocab-size 500 && "
          "$WEFT_BIN/weft-data inspect d_train --check");
  ASSERT_EQ(prepared.exit_code, 0) << prepared.error;
  // The last token of the file, far from the documents that are shown.
  std::string bin = *ReadFile(folder_ / "d_train.bin");
  bin.back() = '\x7f';
  ASSERT_TRUE(WriteFileAtomically(folder_ / "d_train.bin", bin).ok());
  EXPECT_EQ(Run("$WEFT_BIN/weft-data inspect d_train").exit_code, 0);
  Result found = Run("$WEFT_BIN/weft-data inspect d_train --check");
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_THAT(found.error, HasSubstr("d_train.bin, byte " + std::to_string(bin.size() - 2)));
  EXPECT_THAT(found.error, HasSubstr("is not in the vocabulary of 500 tokens, 0 to 499"));
  Result damaged =
      Run("sed -i 's/\"vocab_size\": 500/\"vocab_size\": -5/' d.json; "
          "$WEFT_BIN/weft-data inspect d_train");
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.error, HasSubstr("d.json: 'vocab_size' is -5"));
}

TEST_F(ProgramTest, SaysWhatIsWrongAndFails) {
  Result split =
      Run("$WEFT_BIN/weft-data prepare --input text.txt --output-prefix x --split paragraphs");
  EXPECT_EQ(split.exit_code, 2);
  EXPECT_THAT(split.error, HasSubstr("--split: paragraphs not in {blank-lines,lines,file}"));
  Result most =
      Run("$WEFT_BIN/weft-data prepare --input text.txt --output-prefix x --text-most lots");
  EXPECT_EQ(most.exit_code, 2);
  EXPECT_THAT(most.error, HasSubstr("--text-most: \"lots\" is not a size"));
  Result vocabulary =
      Run("$WEFT_BIN/weft-data prepare --input text.txt --output-prefix x --vocab-size 60000");
  EXPECT_EQ(vocabulary.exit_code, 1);
  EXPECT_THAT(vocabulary.error, HasSubstr("too small for a vocabulary of 60000 tokens"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x_train.bin"));
  EXPECT_NE(Run("$WEFT_BIN/weft-data prepare --input none --output-prefix x").exit_code, 0);
  Result missing = Run("$WEFT_BIN/weft-data inspect none");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.error, HasSubstr("none.idx: No such file"));
  EXPECT_EQ(Run("echo x | $WEFT_BIN/weft-data decode --tokenizer text.txt").exit_code, 1);
}

TEST_F(ProgramTest, HelpNamesEveryCommandWithItsDefaults) {
  Result help = Run("$WEFT_BIN/weft-data --help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* word : {"prepare", "inspect", "encode", "decode"}) {
    EXPECT_THAT(help.out, HasSubstr(word));
  }
  EXPECT_THAT(Run("$WEFT_BIN/weft-data prepare --help").out,
              HasSubstr("--vocab-size INT:INT in [1 - 16777216]=4096"));
  EXPECT_EQ(Run("$WEFT_BIN/weft-plot --help").exit_code, 0);
}

TEST_F(ProgramTest, DrawsTheLossOfARun) {
  ASSERT_TRUE(WriteFileAtomically(folder_ / "metrics.jsonl",
                                  "{\"step\":1,\"loss\":8.5}\n{\"step\":2,\"loss\":8.0,"
                                  "\"val_loss\":8.1}\n")
                  .ok());
  Result drawn = Run("$WEFT_BIN/weft-plot metrics.jsonl -o loss.svg --unigram 6.5 --title Run");
  ASSERT_EQ(drawn.exit_code, 0) << drawn.error;
  EXPECT_THAT(*ReadFile(folder_ / "loss.svg"), HasSubstr("validation 8.1"));
  Result bad = Run("echo '[]' > bad; echo >> bad; $WEFT_BIN/weft-plot bad");
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.error, HasSubstr("bad:1"));
}

}  // namespace
}  // namespace weft::train
