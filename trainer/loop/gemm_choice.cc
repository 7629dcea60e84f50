#include "trainer/loop/gemm_choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/machine_cache.h"
#include "base/status.h"
#include "trainer/files/file.h"
#include "trainer/kernels/gemm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"

namespace weft::train {
namespace {

// FLOP/s of the fastest of the rounds that fit into `duration` nanoseconds.
double Rate(const TrainConfig& config, GemmLibrary library, int64_t duration) {
  constexpr int64_t kMost = 1024;  // more rows and columns take longer and show the same
  const auto type = TypeOf(config.precision);
  const int64_t inputs = std::min(config.model.hidden, kMost);
  const int64_t outputs = std::min(config.model.ffn, kMost);
  const at::Tensor x = at::ones({kMost, inputs}, type), weight = at::ones({outputs, inputs}, type);
  const at::Tensor y = at::empty({kMost, outputs}, type), gradient = at::empty_like(weight);
  const int64_t begin = SystemClock::Nanoseconds();
  int64_t best = 0, start = begin;
  for (int round = 0; round < 3 || start - begin < duration; ++round) {
    Multiply(library, x, weight.t(), y);
    Multiply(library, y.t(), x, gradient);
    const int64_t now = SystemClock::Nanoseconds();
    // The first round warms up.
    if (round == 1 || (round > 1 && now - start < best)) best = now - start;
    start = now;
  }
  const double flops = 4.0 * static_cast<double>(kMost * inputs * outputs);
  return flops / (static_cast<double>(std::max<int64_t>(1, best)) * 1e-9);
}

std::optional<GemmTrial> Parse(const std::string& file) {
  std::ifstream stream(file);
  GemmTrial trial;
  std::array<std::pair<const char*, double*>, 3> fields = {
      std::pair("aten", &trial.aten), std::pair("weft", &trial.weft),
      std::pair("registers", &trial.register_peak)};
  for (auto [name, value] : fields) {
    std::string word;
    if (!(stream >> word >> *value) || word != name || !(*value > 0) || !std::isfinite(*value)) {
      return std::nullopt;
    }
  }
  return trial;
}

// Whether `file` is now there: this trial, or, where `replaces` is false, who came first's.
bool Write(const GemmTrial& trial, const std::string& file, bool replaces) {
  if (!MakeFolders(ParentFolder(file)).ok()) return false;
  const std::string draft = absl::StrCat(file, ".", getpid());
  std::ofstream stream(draft);
  stream << absl::StrFormat("aten %.4g\nweft %.4g\nregisters %.4g\n", trial.aten, trial.weft,
                            trial.register_peak)
         << std::flush;
  const bool written = stream.good();
  stream.close();
  // A link fails where the name is taken, a rename does not.
  if (written && replaces) return std::rename(draft.c_str(), file.c_str()) == 0;
  if (written) (void)link(draft.c_str(), file.c_str());
  std::remove(draft.c_str());
  return written;
}

}  // namespace

absl::string_view NameOf(GemmLibrary library) {
  return library == GemmLibrary::kWeft ? "weft" : "aten";
}

GemmTrial TryGemm(const TrainConfig& config) {
  constexpr int64_t kDuration = 100'000'000;  // ns
  GemmTrial trial;
  trial.register_peak =
      kernels::Gemm().register_peak(config.precision == Precision::kBf16, /*seconds=*/0.02) *
      at::get_num_threads();
  trial.weft = Rate(config, GemmLibrary::kWeft, kDuration);
  trial.aten = Rate(config, GemmLibrary::kAten, kDuration);
  return trial;
}

GemmTrial KeptTrial(const TrainConfig& config, const std::string& file) {
  if (file.empty()) return TryGemm(config);
  if (std::optional<GemmTrial> kept = Parse(file)) return *kept;
  const bool is_damaged = access(file.c_str(), F_OK) == 0;
  const GemmTrial trial = TryGemm(config);
  if (!Write(trial, file, is_damaged)) return trial;
  return Parse(file).value_or(trial);
}

std::string GemmTrialFile(const TrainConfig& config) {
  const std::string folder = MachineCacheFile("gemm");
  if (folder.empty()) return "";
  return absl::StrCat(folder, "/", kernels::Gemm().instruction_set, "-", NameOf(config.precision),
                      "-", config.model.hidden, "x", config.model.ffn, "-", at::get_num_threads());
}

absl::StatusOr<GemmChoice> ChooseGemm(const TrainConfig& config, absl::string_view kept,
                                      Group& group) {
  auto chosen = [](GemmLibrary library, absl::string_view why) {
    return GemmChoice{library, absl::StrCat(NameOf(library), why)};
  };
  if (config.gemm != GemmLibrary::kAuto) return chosen(config.gemm, " (train.gemm)");
  for (GemmLibrary library : {GemmLibrary::kAten, GemmLibrary::kWeft}) {
    if (kept == NameOf(library)) return chosen(library, " (as before)");
  }
  if (config.precision == Precision::kFp16) return chosen(GemmLibrary::kAten, "");
  std::array<double, 3> rates = {};
  if (group.rank() == 0) {
    const GemmTrial trial = KeptTrial(config, GemmTrialFile(config));
    rates = {trial.aten, trial.weft, trial.register_peak};
  }
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(rates)));
  const GemmTrial trial{rates[0], rates[1], rates[2]};
  return chosen(trial.faster(),
                absl::StrFormat(" (of one rank, GFLOP/s: weft %.0f, aten %.0f, registers %.0f)",
                                trial.weft / 1e9, trial.aten / 1e9, trial.register_peak / 1e9));
}

}  // namespace weft::train
