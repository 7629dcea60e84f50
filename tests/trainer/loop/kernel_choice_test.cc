// The trials of what multiplies matrices and computes attention, and the file that keeps it.
#include "trainer/loop/kernel_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "trainer/files/file.h"

namespace weft::train {
namespace {

class KernelChoiceTest : public ::testing::Test {
 protected:
  KernelChoiceTest() {
    config_.model.hidden = 32;
    config_.model.ffn = 48;
    config_.model.heads = 4;
    config_.model.sequence = 24;
    std::filesystem::remove_all(folder_);
  }
  ~KernelChoiceTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& text) {
    ASSERT_TRUE(MakeFolders(ParentFolder(file_)).ok());
    ASSERT_TRUE(WriteFileAtomically(file_, text).ok());
  }
  TrainConfig config_;
  const std::string folder_ =
      ::testing::TempDir() + "/weft_kernel_choice_" + std::to_string(getpid());
  const std::string file_ = folder_ + "/cpu/trial";
};

TEST_F(KernelChoiceTest, ATrialIsKeptForAllThatCome) {
  const KernelTrial first = KeptTrial(TrialOf::kGemm, config_, file_);
  EXPECT_GT(first.aten, 0);
  EXPECT_GT(first.weft, 0);
  EXPECT_GT(first.register_peak, 0);
  const KernelTrial again = KeptTrial(TrialOf::kGemm, config_, file_);
  EXPECT_EQ(again.weft, first.weft);
  EXPECT_EQ(again.aten, first.aten);
}

TEST_F(KernelChoiceTest, AttentionHasATrialOfItsOwn) {
  const KernelTrial first = KeptTrial(TrialOf::kAttention, config_, file_);
  EXPECT_GT(first.aten, 0);
  EXPECT_GT(first.weft, 0);
  EXPECT_EQ(KeptTrial(TrialOf::kAttention, config_, file_).weft, first.weft);
  EXPECT_NE(TrialFile(TrialOf::kAttention, config_), TrialFile(TrialOf::kGemm, config_));
  const std::string of_short = TrialFile(TrialOf::kAttention, config_);
  config_.model.sequence = 48;
  EXPECT_NE(TrialFile(TrialOf::kAttention, config_), of_short);
  Group alone;
  config_.attention = KernelLibrary::kAuto;
  EXPECT_EQ(Choose(TrialOf::kAttention, config_, "weft", alone)->description, "weft (as before)");
  config_.attention = KernelLibrary::kAten;
  EXPECT_EQ(Choose(TrialOf::kAttention, config_, "weft", alone)->description,
            "aten (train.attention)");
}

TEST_F(KernelChoiceTest, WhatIsKeptDecides) {
  Write("aten 9e9\nweft 8e9\nregisters 1e10\n");
  EXPECT_EQ(KeptTrial(TrialOf::kGemm, config_, file_).faster(), KernelLibrary::kAten);
  Write("aten 8e9\nweft 9e9\nregisters 1e10\n");
  EXPECT_EQ(KeptTrial(TrialOf::kGemm, config_, file_).faster(), KernelLibrary::kWeft);
}

TEST_F(KernelChoiceTest, AFileThatIsNoTrialIsReplaced) {
  for (const char* text :
       {"", "aten 1e9", "aten 1e9\nweft -1\nregisters 1e9\n", "weft 1e9\naten 1e9\nregisters 1e9\n",
        "aten nan\nweft nan\nregisters 1"}) {
    Write(text);
    const KernelTrial trial = KeptTrial(TrialOf::kGemm, config_, file_);
    EXPECT_GT(trial.weft, 0) << text;
    EXPECT_EQ(KeptTrial(TrialOf::kGemm, config_, file_).weft,
              KeptTrial(TrialOf::kGemm, config_, file_).weft)
        << text;
    std::ifstream stream(file_);
    std::string word;
    stream >> word;
    EXPECT_EQ(word, "aten") << text;
  }
}

TEST_F(KernelChoiceTest, AFolderThatCannotBeWrittenIsNoError) {
  EXPECT_GT(KeptTrial(TrialOf::kGemm, config_, "/proc/no/such/file").weft, 0);
  EXPECT_GT(KeptTrial(TrialOf::kGemm, config_, "").weft, 0);
}

TEST_F(KernelChoiceTest, TheSettingComesFirstThenTheCheckpoint) {
  Group alone;
  config_.gemm = KernelLibrary::kAten;
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "weft", alone)->library, KernelLibrary::kAten);
  config_.gemm = KernelLibrary::kAuto;
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "weft", alone)->library, KernelLibrary::kWeft);
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "aten", alone)->library, KernelLibrary::kAten);
  config_.precision = Precision::kFp16;
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "", alone)->library, KernelLibrary::kAten);
}

}  // namespace
}  // namespace weft::train
