// The trial of what multiplies matrices, and the file that keeps it.
#include "trainer/loop/gemm_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "trainer/files/file.h"

namespace weft::train {
namespace {

class GemmChoiceTest : public ::testing::Test {
 protected:
  GemmChoiceTest() {
    config_.model.hidden = 32;
    config_.model.ffn = 48;
    std::filesystem::remove_all(folder_);
  }
  ~GemmChoiceTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& text) {
    ASSERT_TRUE(MakeFolders(ParentFolder(file_)).ok());
    ASSERT_TRUE(WriteFileAtomically(file_, text).ok());
  }
  TrainConfig config_;
  const std::string folder_ =
      ::testing::TempDir() + "/weft_gemm_choice_" + std::to_string(getpid());
  const std::string file_ = folder_ + "/cpu/trial";
};

TEST_F(GemmChoiceTest, ATrialIsKeptForAllThatCome) {
  const GemmTrial first = KeptTrial(config_, file_);
  EXPECT_GT(first.aten, 0);
  EXPECT_GT(first.weft, 0);
  EXPECT_GT(first.register_peak, 0);
  const GemmTrial again = KeptTrial(config_, file_);
  EXPECT_EQ(again.weft, first.weft);
  EXPECT_EQ(again.aten, first.aten);
}

TEST_F(GemmChoiceTest, WhatIsKeptDecides) {
  Write("aten 9e9\nweft 8e9\nregisters 1e10\n");
  EXPECT_EQ(KeptTrial(config_, file_).faster(), GemmLibrary::kAten);
  Write("aten 8e9\nweft 9e9\nregisters 1e10\n");
  EXPECT_EQ(KeptTrial(config_, file_).faster(), GemmLibrary::kWeft);
}

TEST_F(GemmChoiceTest, AFileThatIsNoTrialIsReplaced) {
  for (const char* text :
       {"", "aten 1e9", "aten 1e9\nweft -1\nregisters 1e9\n", "weft 1e9\naten 1e9\nregisters 1e9\n",
        "aten nan\nweft nan\nregisters 1"}) {
    Write(text);
    const GemmTrial trial = KeptTrial(config_, file_);
    EXPECT_GT(trial.weft, 0) << text;
    EXPECT_EQ(KeptTrial(config_, file_).weft, KeptTrial(config_, file_).weft) << text;
    std::ifstream stream(file_);
    std::string word;
    stream >> word;
    EXPECT_EQ(word, "aten") << text;
  }
}

TEST_F(GemmChoiceTest, AFolderThatCannotBeWrittenIsNoError) {
  EXPECT_GT(KeptTrial(config_, "/proc/no/such/file").weft, 0);
  EXPECT_GT(KeptTrial(config_, "").weft, 0);
}

TEST_F(GemmChoiceTest, TheSettingComesFirstThenTheCheckpoint) {
  Group alone;
  config_.gemm = GemmLibrary::kAten;
  EXPECT_EQ(ChooseGemm(config_, "weft", alone)->library, GemmLibrary::kAten);
  config_.gemm = GemmLibrary::kAuto;
  EXPECT_EQ(ChooseGemm(config_, "weft", alone)->library, GemmLibrary::kWeft);
  EXPECT_EQ(ChooseGemm(config_, "aten", alone)->library, GemmLibrary::kAten);
  config_.precision = Precision::kFp16;
  EXPECT_EQ(ChooseGemm(config_, "", alone)->library, GemmLibrary::kAten);
}

}  // namespace
}  // namespace weft::train
