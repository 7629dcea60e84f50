// The trials of what multiplies matrices and computes attention, and the file that keeps it.
#include "trainer/kernel_choice/kernel_choice.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/trainer/kernel_choice/small_config.h"
#include "trainer/files/file.h"
#include "trainer/kernel_choice/trial_file.h"

namespace weft::train {
namespace {

class KernelChoiceTest : public ::testing::Test {
 protected:
  KernelChoiceTest() {
    at::set_num_threads(1);  // others' load does not count then
    std::filesystem::remove_all(folder_);
  }
  ~KernelChoiceTest() override { std::filesystem::remove_all(folder_); }
  void Write(const std::string& text) {
    ASSERT_TRUE(MakeFolders(ParentFolder(file_)).ok());
    ASSERT_TRUE(WriteFileAtomically(file_, text).ok());
  }
  StepPlan Plan() const {
    const absl::StatusOr<StepPlan> plan = StepPlan::Make(
        config_, {.tensor = config_.tensor_parallel, .context = config_.context_parallel});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }
  KernelTrial Kept(TrialOf what, bool anew = false) const {
    return KeptTrial(what, config_, Plan(), file_, /*seconds=*/0.05, anew);
  }
  std::string File(TrialOf what) const { return TrialFile(what, config_, Plan()); }
  absl::StatusOr<KernelChoice> Chosen(TrialOf what, const char* kept) {
    return Choose(what, config_, Plan(), kept, alone_);
  }

  TrainConfig config_ = SmallConfig();
  Group alone_;
  const std::string folder_ =
      ::testing::TempDir() + "/weft_kernel_choice_" + std::to_string(getpid());
  const std::string file_ = folder_ + "/cpu/trial";
};

TEST_F(KernelChoiceTest, ATrialIsKeptForAllThatComeUntilOneIsAskedForAnew) {
  const KernelTrial first = Kept(TrialOf::kGemm);
  ASSERT_EQ(first.rates.size(), ProductsOf(config_, Plan()).size());
  EXPECT_GT(first.register_peak, 0);
  const KernelTrial again = Kept(TrialOf::kGemm);
  ASSERT_EQ(again.rates.size(), first.rates.size());
  for (size_t i = 0; i < first.rates.size(); ++i) {
    EXPECT_GT(first.rates[i].aten, 0);
    EXPECT_GT(first.rates[i].weft, 0);
    EXPECT_EQ(first.rates[i].onednn > 0, HasOneDnn());
    EXPECT_EQ(first.rates[i].rows, 48);
    EXPECT_EQ(again.rates[i].weft, first.rates[i].weft);
    EXPECT_EQ(again.rates[i].aten, first.rates[i].aten);
  }
  std::string text = ToText(first, TrialOf::kGemm, config_);
  text.replace(text.find(" aten "), std::string(" aten ").size(), " aten 1234 no");
  Write(text);
  const KernelTrial anew = Kept(TrialOf::kGemm, /*anew=*/true);
  EXPECT_EQ(anew.note.find("damaged"), std::string::npos) << anew.note;
  EXPECT_EQ(Kept(TrialOf::kGemm).rates[0].weft, anew.rates[0].weft);
}

TEST_F(KernelChoiceTest, AttentionHasATrialForEachWindow) {
  config_.model.window = 8;
  config_.model.window_layers = {true, false};
  const KernelTrial first = Kept(TrialOf::kAttention);
  ASSERT_EQ(first.rates.size(), 2U);
  EXPECT_EQ(first.rates[0].name, "attention.window.0");
  EXPECT_EQ(first.rates[1].name, "attention.window.8");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_GT(first.rates[i].aten, 0);
    EXPECT_GT(first.rates[i].weft, 0);
    EXPECT_EQ(Kept(TrialOf::kAttention).rates[i].weft, first.rates[i].weft);
  }
  // The window sees a third of the keys.
  EXPECT_NEAR(first.rates[1].flops / first.rates[0].flops, 1.0 / 3, 1e-9);
  config_.tensor_parallel = 2;  // half of the heads
  EXPECT_NEAR(Kept(TrialOf::kAttention, /*anew=*/true).rates[0].flops / first.rates[0].flops, 0.5,
              1e-9);
}

TEST_F(KernelChoiceTest, EachWindowHasTheLibraryThatIsFasterThere) {
  KernelTrial trial;
  trial.rates = {{.name = "attention.window.0", .aten = 1e9, .weft = 2e9},
                 {.name = "attention.window.8", .aten = 4e9, .weft = 3e9}};
  EXPECT_EQ(trial.Faster(), "weft,aten=window.8");
  const auto libraries = AttentionLibraries::FromText(trial.Faster());
  ASSERT_TRUE(libraries.has_value());
  EXPECT_EQ(libraries->Of(0), KernelLibrary::kWeft);
  EXPECT_EQ(libraries->Of(8), KernelLibrary::kAten);
  for (const char* text : {"", "onednn", "weft,", "weft,aten", "weft,aten=window.",
                           "weft,aten=window.-1", "weft,onednn=window.8"}) {
    EXPECT_FALSE(AttentionLibraries::FromText(text).has_value()) << text;
  }
}

// A trial is of one LibTorch, and of the work of one rank.
TEST_F(KernelChoiceTest, WhatARateDependsOnHasAFileOfItsOwn) {
  if (File(TrialOf::kGemm).empty()) GTEST_SKIP() << "no home";
  EXPECT_NE(File(TrialOf::kGemm).find("/torch-2."), std::string::npos) << File(TrialOf::kGemm);
  const TrainConfig first = config_;
  std::vector<std::string> files = {File(TrialOf::kGemm), File(TrialOf::kAttention)};
  const auto expect_others = [&](absl::string_view what, bool gemm, bool attention) {
    EXPECT_EQ(File(TrialOf::kGemm) != files[0], gemm) << what;
    EXPECT_EQ(File(TrialOf::kAttention) != files[1], attention) << what;
    config_ = first;
  };
  config_.model.sequence = 48;
  expect_others("sequence", true, true);
  config_.global_batch = 4;
  expect_others("rows", true, true);
  config_.tensor_parallel = 2;
  expect_others("heads of a rank", true, true);
  config_.model.window = 8;
  expect_others("window", false, true);
  config_.precision = Precision::kBf16;
  expect_others("type", true, true);
}

TEST_F(KernelChoiceTest, ShapesAreWholeWhereThereIsTimeAndCutWhereThereIsNone) {
  config_.model.hidden = 256;
  config_.model.ffn = 1024;
  config_.model.vocabulary = 4096;
  config_.model.sequence = 512;
  const auto rate_of = [](const KernelTrial& trial, absl::string_view name) {
    for (const KernelRates& row : trial.rates) {
      if (row.name == name) return row;
    }
    return KernelRates();
  };
  const KernelTrial brief = Try(TrialOf::kGemm, config_, Plan(), /*seconds=*/0.01);
  EXPECT_LT(rate_of(brief, "forward.256x4096").part, 0.9);
  EXPECT_GT(rate_of(brief, "forward.256x4096").part, 0);
  config_.global_batch = 1;
  config_.model.sequence = 32;
  const KernelTrial longer = Try(TrialOf::kGemm, config_, Plan(), /*seconds=*/1);
  for (const KernelRates& row : longer.rates) EXPECT_EQ(row.part, 1) << row.name;
}

TEST_F(KernelChoiceTest, TheFastestAtEachProductIsTaken) {
  KernelTrial trial;
  trial.rates = {{.name = "forward.32x96", .aten = 1e9, .weft = 2e9},
                 {.name = "input.32x96", .aten = 1e9, .weft = 2e9},
                 {.name = "weight.32x96", .aten = 2e9, .weft = 1e9}};
  EXPECT_EQ(trial.Faster(), "weft,aten=weight.32x96");
  trial.rates[2].aten = 1.01e9;  // as fast as the other
  EXPECT_EQ(trial.Faster(), "weft");
  trial.rates[0].onednn = 3e9;
  EXPECT_EQ(trial.Faster(), "weft,onednn=forward.32x96");
  trial.rates = {{.name = "forward.32x96", .aten = 2e9, .weft = 1e9},
                 {.name = "input.32x32", .aten = 1e9, .weft = 2e9}};
  trial.rates[0].flops = 9;  // most of a step
  EXPECT_EQ(trial.Faster(), "aten,weft=input.32x32");
  // Our own loops where the others are hardly faster: they bring what follows a product.
  trial.rates = {{.name = "forward.32x96", .aten = 1.01e9, .weft = 1e9}};
  EXPECT_EQ(trial.Faster(), "weft");
  trial.rates = {{.name = "forward.32x96", .aten = 1e9, .weft = 0.9e9, .onednn = 1.01e9}};
  EXPECT_EQ(trial.Faster(), "onednn");
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
  libraries.Set({GemmPass::kForward, 1, 2}, KernelLibrary::kOneDnn);
  EXPECT_EQ(libraries.ToText(), "weft,onednn=forward.1x2");
  EXPECT_TRUE(GemmLibraries::FromText(libraries.ToText()).has_value());
  for (const char* text : {"", "mkl", "weft,", "weft,aten", "weft,aten=", "weft,aten=input.32",
                           "weft,mkl=input.32x96", "weft,aten=up.32x96", "weft,aten=input.32xy"}) {
    EXPECT_FALSE(GemmLibraries::FromText(text).has_value()) << text;
  }
}

std::string TrialText(const std::string& rates, const std::string& registers = "1e10") {
  return "trial 2\nregisters " + registers + "\nothers 0\nattention.window.0 rows 48 part 1 " +
         rates + "\n";
}

TEST_F(KernelChoiceTest, WhatIsKeptDecides) {
  Write(TrialText("aten 9e9 weft 8e9"));
  EXPECT_EQ(Kept(TrialOf::kAttention).Faster(), "aten");
  EXPECT_EQ(Kept(TrialOf::kAttention).note, "");
  Write(TrialText("aten 8e9 weft 9e9"));
  EXPECT_EQ(Kept(TrialOf::kAttention).Faster(), "weft");
}

TEST_F(KernelChoiceTest, AFileThatIsNoTrialIsMeasuredAnewAndSaidSo) {
  const std::string whole = TrialText("aten 8e9 weft 9e9");
  const std::pair<std::string, const char*> cases[] = {
      {"", "trial"},
      {"registers 1e9\nattention aten 1e9 weft 1e9\n", "trial"},  // an older format
      {"trial 2\nregisters 1e9\n", "others"},
      {TrialText("aten 1e9"), "weft"},
      {TrialText("aten 1e9 weft -1"), "weft is -1"},
      {TrialText("aten nan weft 1e9"), "aten is nan"},
      {TrialText("aten inf weft 1e9"), "aten is inf"},
      {TrialText("aten 1e9 weft 9e13"), "weft is 9e13"},  // no processor reaches that
      {TrialText("aten 1e9 weft 1e9", "nan"), "registers is nan"},
      {TrialText("aten 1e9 weft 1e9", "0"), "registers is 0"},
      {whole + "more", "more"},
      {std::string(whole).replace(whole.find("48"), 2, "96"), "rows is 96"},
      {std::string(whole).replace(whole.find("window.0"), 8, "window.7"), "window.7"}};
  for (const auto& [text, why] : cases) {
    Write(text);
    const KernelTrial trial = Kept(TrialOf::kAttention);
    ASSERT_EQ(trial.rates.size(), 1U) << text;
    EXPECT_GT(trial.rates[0].weft, 0) << text;
    EXPECT_NE(trial.note.find("damaged"), std::string::npos) << trial.note;
    EXPECT_NE(trial.note.find(why), std::string::npos) << trial.note;
    const KernelTrial again = Kept(TrialOf::kAttention);
    EXPECT_NEAR(again.rates[0].weft / trial.rates[0].weft, 1, 1e-3) << text;
    EXPECT_EQ(again.note.find("damaged"), std::string::npos) << again.note;
  }
}

TEST_F(KernelChoiceTest, ATrialBesideOtherProgramsAsksForABetterOne) {
  Write(
      "trial 2\nregisters 1e10\nothers 999\nattention.window.0 rows 48 part 1 aten 9e9 weft 8e9\n");
  const KernelTrial trial = Kept(TrialOf::kAttention);
  EXPECT_EQ(trial.Faster(), "aten");
  EXPECT_NE(trial.note.find("--measure-kernels"), std::string::npos) << trial.note;
}

TEST_F(KernelChoiceTest, AFolderThatCannotBeWrittenIsNoError) {
  for (const char* file : {"/proc/no/such/file", ""}) {
    EXPECT_GT(KeptTrial(TrialOf::kAttention, config_, Plan(), file, 0.05).rates[0].weft, 0) << file;
  }
}

TEST_F(KernelChoiceTest, TheSettingComesFirstThenTheCheckpoint) {
  config_.gemm = KernelLibrary::kAten;
  EXPECT_EQ(Chosen(TrialOf::kGemm, "weft")->text, "aten");
  config_.gemm = KernelLibrary::kAuto;
  EXPECT_EQ(Chosen(TrialOf::kGemm, "weft")->libraries.all(), KernelLibrary::kWeft);
  EXPECT_EQ(Chosen(TrialOf::kGemm, "aten")->libraries.all(), KernelLibrary::kAten);
  const char* mixed = "weft,aten=input.32x96";
  EXPECT_EQ(Chosen(TrialOf::kGemm, mixed)->libraries.ToText(), mixed);
  config_.attention = KernelLibrary::kAuto;
  EXPECT_EQ(Chosen(TrialOf::kAttention, "weft")->description, "weft (as before)");
  EXPECT_EQ(Chosen(TrialOf::kAttention, "aten,weft=window.8")->attention.Of(8),
            KernelLibrary::kWeft);
  config_.attention = KernelLibrary::kAten;
  EXPECT_EQ(Chosen(TrialOf::kAttention, "weft")->description, "aten (train.attention)");
  config_.precision = Precision::kFp16;
  EXPECT_EQ(Chosen(TrialOf::kGemm, "")->libraries.all(), KernelLibrary::kAten);
  config_.gemm = KernelLibrary::kWeft;
  EXPECT_EQ(Chosen(TrialOf::kGemm, "")->description, "aten (alone for fp16)");
}

// A device has LibTorch's alone; the checkpoint's are the CPU's, for when the run is back there.
TEST_F(KernelChoiceTest, ADeviceHasLibTorchsAndKeepsTheCheckpointsForTheCpu) {
  config_.gemm = config_.attention = KernelLibrary::kAuto;
  for (const DeviceKind device : {DeviceKind::kCuda, DeviceKind::kCpuAten}) {
    config_.device = device;
    for (const char* kept : {"weft", ""}) {
      const auto gemm = Chosen(TrialOf::kGemm, kept);
      ASSERT_TRUE(gemm.ok()) << gemm.status();
      EXPECT_EQ(gemm->libraries.ToText(), "aten");
      EXPECT_EQ(gemm->description, "aten");
      EXPECT_EQ(gemm->text, kept);
      const auto attention = Chosen(TrialOf::kAttention, kept);
      ASSERT_TRUE(attention.ok()) << attention.status();
      EXPECT_EQ(attention->attention.ToText(), "aten");
      EXPECT_EQ(attention->text, kept);
    }
  }
}

}  // namespace
}  // namespace weft::train
