#include "trainer/loop/kernel_choice.h"

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
#include "trainer/model/attention_tiles.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"

namespace weft::train {
namespace {

// FLOP/s of the fastest of the rounds that fit into `duration` nanoseconds.
template <typename Round>
double Rate(double flops, int64_t duration, Round round) {
  const int64_t begin = SystemClock::Nanoseconds();
  int64_t best = 0, start = begin;
  for (int number = 0; number < 3 || start - begin < duration; ++number) {
    round();
    const int64_t now = SystemClock::Nanoseconds();
    // The first round warms up.
    if (number == 1 || (number > 1 && now - start < best)) best = now - start;
    start = now;
  }
  return flops / (static_cast<double>(std::max<int64_t>(1, best)) * 1e-9);
}

double RateOfGemm(const TrainConfig& config, KernelLibrary library, int64_t duration) {
  constexpr int64_t kMost = 1024;  // more rows and columns take longer and show the same
  const auto type = TypeOf(config.precision);
  const int64_t inputs = std::min(config.model.hidden, kMost);
  const int64_t outputs = std::min(config.model.ffn, kMost);
  const at::Tensor x = at::ones({kMost, inputs}, type), weight = at::ones({outputs, inputs}, type);
  const at::Tensor y = at::empty({kMost, outputs}, type), gradient = at::empty_like(weight);
  return Rate(4.0 * static_cast<double>(kMost * inputs * outputs), duration, [&] {
    Multiply(library, x, weight.t(), y);
    Multiply(library, y.t(), x, gradient);
  });
}

// One sample of all heads, its rows as training has them; as many tokens as a second or two would
// show the same with.
double RateOfAttention(const TrainConfig& config, KernelLibrary library, int64_t duration) {
  const int64_t length = std::min<int64_t>(config.model.sequence, 1024);
  const int64_t heads = config.model.heads, width = config.model.hidden / heads;
  auto rows = [&](int64_t of_heads) {
    return at::ones({1, length, of_heads, width}, TypeOf(config.precision)).transpose(1, 2);
  };
  const AttentionInputs inputs{rows(heads), rows(config.model.KvHeads()),
                               rows(config.model.KvHeads())};
  const AttentionInputs gradients{rows(heads), rows(config.model.KvHeads()),
                                  rows(config.model.KvHeads())};
  const at::Tensor dout = rows(heads);
  const int64_t window = config.model.WindowOf(0);
  const int64_t seen = window > 0 ? std::min(window, length) : length;
  // Two products forward and five backward, of which a causal mask leaves half.
  const double flops = 7.0 * static_cast<double>(heads * width * length * seen);
  return Rate(flops, duration, [&] {
    AttendBackward(library, dout, inputs, Attend(library, inputs, window), window, gradients);
  });
}

std::optional<KernelTrial> Parse(const std::string& file) {
  std::ifstream stream(file);
  KernelTrial trial;
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
bool Write(const KernelTrial& trial, const std::string& file, bool replaces) {
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

absl::string_view NameOf(KernelLibrary library) {
  return library == KernelLibrary::kWeft ? "weft" : "aten";
}

KernelTrial Try(TrialOf what, const TrainConfig& config) {
  constexpr int64_t kDuration = 100'000'000;  // ns
  const auto rate = what == TrialOf::kGemm ? &RateOfGemm : &RateOfAttention;
  KernelTrial trial;
  trial.register_peak =
      kernels::Gemm().register_peak(config.precision == Precision::kBf16, /*seconds=*/0.02) *
      at::get_num_threads();
  trial.weft = rate(config, KernelLibrary::kWeft, kDuration);
  trial.aten = rate(config, KernelLibrary::kAten, kDuration);
  return trial;
}

KernelTrial KeptTrial(TrialOf what, const TrainConfig& config, const std::string& file) {
  if (file.empty()) return Try(what, config);
  if (std::optional<KernelTrial> kept = Parse(file)) return *kept;
  const bool is_damaged = access(file.c_str(), F_OK) == 0;
  const KernelTrial trial = Try(what, config);
  if (!Write(trial, file, is_damaged)) return trial;
  return Parse(file).value_or(trial);
}

std::string TrialFile(TrialOf what, const TrainConfig& config) {
  const std::string folder = MachineCacheFile(what == TrialOf::kGemm ? "gemm" : "attention");
  if (folder.empty()) return "";
  const ModelConfig& model = config.model;
  const std::string shape =
      what == TrialOf::kGemm
          ? absl::StrCat(model.hidden, "x", model.ffn)
          : absl::StrCat(model.heads, ".", model.KvHeads(), "x", model.hidden / model.heads, "x",
                         model.sequence, "w", model.WindowOf(0));
  return absl::StrCat(folder, "/", kernels::Gemm().instruction_set, "-", NameOf(config.precision),
                      "-", shape, "-", at::get_num_threads());
}

absl::StatusOr<KernelChoice> Choose(TrialOf what, const TrainConfig& config, absl::string_view kept,
                                    Group& group) {
  auto chosen = [](KernelLibrary library, absl::string_view why) {
    return KernelChoice{library, absl::StrCat(NameOf(library), why)};
  };
  const bool is_gemm = what == TrialOf::kGemm;
  const KernelLibrary set = is_gemm ? config.gemm : config.attention;
  if (set != KernelLibrary::kAuto) {
    return chosen(set, is_gemm ? " (train.gemm)" : " (train.attention)");
  }
  for (KernelLibrary library : {KernelLibrary::kAten, KernelLibrary::kWeft}) {
    if (kept == NameOf(library)) return chosen(library, " (as before)");
  }
  const bool is_cpu = config.device == DeviceKind::kCpu;
  if (!is_cpu || config.precision == Precision::kFp16) return chosen(KernelLibrary::kAten, "");
  std::array<double, 3> rates = {};
  if (group.rank() == 0) {
    const KernelTrial trial = KeptTrial(what, config, TrialFile(what, config));
    rates = {trial.aten, trial.weft, trial.register_peak};
  }
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(rates)));
  const KernelTrial trial{rates[0], rates[1], rates[2]};
  return chosen(trial.faster(),
                absl::StrFormat(" (of one rank, GFLOP/s: weft %.0f, aten %.0f, registers %.0f)",
                                trial.weft / 1e9, trial.aten / 1e9, trial.register_peak / 1e9));
}

}  // namespace weft::train
