// The trials of what multiplies matrices and computes attention, and the file that keeps it.
#include "trainer/loop/kernel_choice.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

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
  ASSERT_EQ(first.rates.size(), GemmShapesOf(config_).size());
  EXPECT_GT(first.register_peak, 0);
  const KernelTrial again = KeptTrial(TrialOf::kGemm, config_, file_);
  ASSERT_EQ(again.rates.size(), first.rates.size());
  for (size_t i = 0; i < first.rates.size(); ++i) {
    EXPECT_GT(first.rates[i].aten, 0);
    EXPECT_EQ(again.rates[i].weft, first.rates[i].weft);
    EXPECT_EQ(again.rates[i].aten, first.rates[i].aten);
  }
}

TEST_F(KernelChoiceTest, AttentionHasATrialOfItsOwn) {
  const KernelTrial first = KeptTrial(TrialOf::kAttention, config_, file_);
  ASSERT_EQ(first.rates.size(), 1U);
  EXPECT_GT(first.rates[0].aten, 0);
  EXPECT_GT(first.rates[0].weft, 0);
  EXPECT_EQ(KeptTrial(TrialOf::kAttention, config_, file_).rates[0].weft, first.rates[0].weft);
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

// A model of GPT-2's form has five weights: queries, keys and values; attention's output; the inner
// layer; the way back from it; and the output projection, which is the embedding's table.
TEST_F(KernelChoiceTest, EachProductOfAStepHasARate) {
  config_.model.vocabulary = 100;
  config_.model.layers = 3;
  std::vector<std::string> names;
  for (const GemmShape& shape : GemmShapesOf(config_)) names.push_back(ToString(shape));
  std::vector<std::string> wanted;
  for (const char* layer : {"32x100", "32x96", "32x32", "32x48", "48x32"}) {
    for (const char* pass : {"forward.", "input.", "weight."}) {
      wanted.push_back(std::string(pass) + layer);
    }
  }
  EXPECT_EQ(names, wanted);
  config_.tensor_parallel = 2;
  EXPECT_EQ(ToString(GemmShapesOf(config_)[3]), "forward.32x48");
}

TEST_F(KernelChoiceTest, TheFasterAtEachProductIsTaken) {
  KernelTrial trial;
  trial.rates = {
      {"forward.32x96", 1e9, 2e9}, {"input.32x96", 1e9, 2e9}, {"weight.32x96", 2e9, 1e9}};
  EXPECT_EQ(trial.Faster(), "weft,aten=weight.32x96");
  trial.rates[2].aten = 1.01e9;  // as fast as the other
  EXPECT_EQ(trial.Faster(), "weft");
  trial.rates = {{"forward.32x96", 2e9, 1e9}, {"input.32x32", 1e9, 2e9}};
  EXPECT_EQ(trial.Faster(), "aten,weft=input.32x32");
}

TEST_F(KernelChoiceTest, TheTextOfLibrariesIsReadBack) {
  const GemmShape shape{GemmPass::kInputGradient, 32, 96};
  GemmLibraries libraries(KernelLibrary::kWeft);
  libraries.Set(shape, KernelLibrary::kAten);
  EXPECT_EQ(libraries.ToText(), "weft,aten=input.32x96");
  const std::optional<GemmLibraries> read = GemmLibraries::FromText(libraries.ToText());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->ToText(), libraries.ToText());
  EXPECT_EQ(read->Of(shape), KernelLibrary::kAten);
  EXPECT_EQ(read->Of({GemmPass::kForward, 32, 96}), KernelLibrary::kWeft);
  libraries.Set(shape, KernelLibrary::kWeft);
  EXPECT_EQ(libraries.ToText(), "weft");
  for (const char* text : {"", "mkl", "weft,", "weft,aten", "weft,aten=", "weft,aten=input.32",
                           "weft,mkl=input.32x96", "weft,aten=up.32x96", "weft,aten=input.32xy"}) {
    EXPECT_FALSE(GemmLibraries::FromText(text).has_value()) << text;
  }
}

TEST_F(KernelChoiceTest, WhatIsKeptDecides) {
  Write("registers 1e10\nattention aten 9e9 weft 8e9\n");
  EXPECT_EQ(KeptTrial(TrialOf::kAttention, config_, file_).Faster(), "aten");
  Write("registers 1e10\nattention aten 8e9 weft 9e9\n");
  EXPECT_EQ(KeptTrial(TrialOf::kAttention, config_, file_).Faster(), "weft");
}

TEST_F(KernelChoiceTest, AFileThatIsNoTrialIsReplaced) {
  for (const char* text :
       {"", "registers 1e9", "registers 1e9\nattention aten 1e9\n",
        "registers 1e9\nattention aten 1e9 weft -1\n", "registers 1e9\nother aten 1e9 weft 1e9\n",
        "registers nan\nattention aten nan weft 1\n", "aten 1e9\nweft 1e9\nregisters 1e9\n"}) {
    Write(text);
    const KernelTrial trial = KeptTrial(TrialOf::kAttention, config_, file_);
    ASSERT_EQ(trial.rates.size(), 1U) << text;
    EXPECT_GT(trial.rates[0].weft, 0) << text;
    EXPECT_EQ(KeptTrial(TrialOf::kAttention, config_, file_).rates[0].weft,
              KeptTrial(TrialOf::kAttention, config_, file_).rates[0].weft)
        << text;
    std::ifstream stream(file_);
    std::string word;
    stream >> word;
    EXPECT_EQ(word, "registers") << text;
  }
}

TEST_F(KernelChoiceTest, AFolderThatCannotBeWrittenIsNoError) {
  for (const char* file : {"/proc/no/such/file", ""}) {
    EXPECT_GT(KeptTrial(TrialOf::kAttention, config_, file).rates[0].weft, 0) << file;
  }
}

TEST_F(KernelChoiceTest, TheSettingComesFirstThenTheCheckpoint) {
  Group alone;
  config_.gemm = KernelLibrary::kAten;
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "weft", alone)->libraries.all(), KernelLibrary::kAten);
  config_.gemm = KernelLibrary::kAuto;
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "weft", alone)->libraries.all(), KernelLibrary::kWeft);
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "aten", alone)->libraries.all(), KernelLibrary::kAten);
  const char* mixed = "weft,aten=input.32x96";
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, mixed, alone)->libraries.ToText(), mixed);
  config_.precision = Precision::kFp16;
  EXPECT_EQ(Choose(TrialOf::kGemm, config_, "", alone)->libraries.all(), KernelLibrary::kAten);
}

}  // namespace
}  // namespace weft::train
