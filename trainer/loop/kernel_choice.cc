#include "trainer/loop/kernel_choice.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <optional>

#include "absl/strings/match.h"
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

// A product's rate, on so few rows and columns as take little time but have the product's blocks.
double RateOfGemm(const TrainConfig& config, KernelLibrary library, const GemmShape& shape,
                  int64_t duration) {
  constexpr double kMostFlops = 1e9;
  const auto type = TypeOf(config.precision);
  const double flops_a_row = 2.0 * static_cast<double>(shape.inputs * shape.outputs);
  const int64_t rows =
      std::clamp(static_cast<int64_t>(kMostFlops / flops_a_row), int64_t{128}, int64_t{512});
  int64_t inputs = shape.inputs, outputs = shape.outputs;
  int64_t& wider = inputs > outputs ? inputs : outputs;
  const double narrower = static_cast<double>(std::min(inputs, outputs));
  wider = std::min(wider, std::max(static_cast<int64_t>(narrower),
                                   static_cast<int64_t>(kMostFlops / 2.0 / narrower /
                                                        static_cast<double>(rows))));
  const at::Tensor x = at::ones({rows, inputs}, type), weight = at::ones({outputs, inputs}, type);
  const at::Tensor y = at::ones({rows, outputs}, type);
  return Rate(2.0 * static_cast<double>(rows * inputs * outputs), duration, [&] {
    switch (shape.pass) {
      case GemmPass::kForward:
        return Multiply(library, x, weight.t(), y);
      case GemmPass::kInputGradient:
        return Multiply(library, y, weight, x);
      case GemmPass::kWeightGradient:
        return Multiply(library, y.t(), x, weight);
    }
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

std::vector<std::string> NamesOf(TrialOf what, const TrainConfig& config) {
  if (what == TrialOf::kAttention) return {"attention"};
  std::vector<std::string> names;
  for (const GemmShape& shape : GemmShapesOf(config)) names.push_back(ToString(shape));
  return names;
}

std::optional<double> RateAfter(std::ifstream& stream, absl::string_view name) {
  std::string word;
  double rate = 0;
  if (!(stream >> word >> rate) || word != name || !(rate > 0) || !std::isfinite(rate)) {
    return std::nullopt;
  }
  return rate;
}

std::optional<KernelTrial> Parse(const std::string& file, const std::vector<std::string>& names) {
  std::ifstream stream(file);
  KernelTrial trial;
  const std::optional<double> registers = RateAfter(stream, "registers");
  if (!registers) return std::nullopt;
  trial.register_peak = *registers;
  for (const std::string& name : names) {
    std::string word;
    if (!(stream >> word) || word != name) return std::nullopt;
    const std::optional<double> aten = RateAfter(stream, "aten");
    const std::optional<double> weft = aten ? RateAfter(stream, "weft") : std::nullopt;
    if (!weft) return std::nullopt;
    trial.rates.push_back({name, *aten, *weft});
  }
  return trial;
}

// Whether `file` is now there: this trial, or, where `replaces` is false, who came first's.
bool Write(const KernelTrial& trial, const std::string& file, bool replaces) {
  if (!MakeFolders(ParentFolder(file)).ok()) return false;
  const std::string draft = absl::StrCat(file, ".", getpid());
  std::ofstream stream(draft);
  stream << absl::StrFormat("registers %.4g\n", trial.register_peak);
  for (const KernelRates& row : trial.rates) {
    stream << absl::StrFormat("%s aten %.4g weft %.4g\n", row.name, row.aten, row.weft);
  }
  stream << std::flush;
  const bool written = stream.good();
  stream.close();
  // A link fails where the name is taken, a rename does not.
  if (written && replaces) return std::rename(draft.c_str(), file.c_str()) == 0;
  if (written) (void)link(draft.c_str(), file.c_str());
  std::remove(draft.c_str());
  return written;
}

// A row's work in any unit: a product's multiplications for each row of activations.
double WorkOf(const KernelRates& row) {
  const std::optional<GemmShape> shape = GemmShapeFrom(row.name);
  return shape ? static_cast<double>(shape->inputs * shape->outputs) : 1;
}

// Over all rows.
template <typename RateOfRow>
double TotalRate(const KernelTrial& trial, RateOfRow rate) {
  double work = 0, time = 0;
  for (const KernelRates& row : trial.rates) {
    work += WorkOf(row);
    time += WorkOf(row) / rate(row);
  }
  return work / time;
}
double TotalAten(const KernelTrial& trial) {
  return TotalRate(trial, [](const KernelRates& row) { return row.aten; });
}
double TotalWeft(const KernelTrial& trial) {
  return TotalRate(trial, [](const KernelRates& row) { return row.weft; });
}

std::string Describe(const KernelTrial& trial, const GemmLibraries& libraries) {
  std::string others;
  const KernelLibrary all = libraries.all();
  if (const size_t count = libraries.others(); count > 0) {
    others = absl::StrFormat(
        ", but %s for %d of %d",
        NameOf(all == KernelLibrary::kWeft ? KernelLibrary::kAten : KernelLibrary::kWeft), count,
        trial.rates.size());
  }
  return absl::StrFormat("%s%s (of one rank, GFLOP/s: weft %.0f, aten %.0f, registers %.0f)",
                         NameOf(all), others, TotalWeft(trial) / 1e9, TotalAten(trial) / 1e9,
                         trial.register_peak / 1e9);
}

}  // namespace

std::string KernelTrial::Faster() const {
  // A library that is no faster than this is no other choice, but the same one measured twice.
  constexpr double kClearly = 1.05;
  const bool weft = TotalWeft(*this) > TotalAten(*this);
  GemmLibraries libraries(weft ? KernelLibrary::kWeft : KernelLibrary::kAten);
  for (const KernelRates& row : rates) {
    const std::optional<GemmShape> shape = GemmShapeFrom(row.name);
    const bool is_other = weft ? row.aten > kClearly * row.weft : row.weft > kClearly * row.aten;
    if (shape && is_other) {
      libraries.Set(*shape, weft ? KernelLibrary::kAten : KernelLibrary::kWeft);
    }
  }
  return libraries.ToText();
}

std::vector<GemmShape> GemmShapesOf(const TrainConfig& config) {
  ModelConfig model = config.model;
  model.layers = 1;  // all have the same matrices
  ModelPart part = WholeModel(model);
  part.tensor_size = config.tensor_parallel;
  std::vector<GemmShape> shapes;
  for (const ParameterSpec& spec : GptParameters(model, part)) {
    const bool is_looked_up =
        spec.name == "embedding.position" || (spec.name == "embedding.token" && !model.tied);
    if (!spec.is_matrix || is_looked_up || absl::StrContains(spec.name, ".router.") ||
        spec.elements() == 0) {
      continue;
    }
    for (GemmPass pass :
         {GemmPass::kForward, GemmPass::kInputGradient, GemmPass::kWeightGradient}) {
      const GemmShape shape{pass, spec.shape[1], spec.shape[0]};
      if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
    }
  }
  return shapes;
}

KernelTrial Try(TrialOf what, const TrainConfig& config) {
  constexpr int64_t kDuration = 100'000'000;        // ns
  constexpr int64_t kProductDuration = 10'000'000;  // ns
  KernelTrial trial;
  trial.register_peak =
      kernels::Gemm().register_peak(config.precision == Precision::kBf16, /*seconds=*/0.02) *
      at::get_num_threads();
  if (what == TrialOf::kAttention) {
    trial.rates.push_back({"attention", RateOfAttention(config, KernelLibrary::kAten, kDuration),
                           RateOfAttention(config, KernelLibrary::kWeft, kDuration)});
    return trial;
  }
  for (const GemmShape& shape : GemmShapesOf(config)) {
    trial.rates.push_back({ToString(shape),
                           RateOfGemm(config, KernelLibrary::kAten, shape, kProductDuration),
                           RateOfGemm(config, KernelLibrary::kWeft, shape, kProductDuration)});
  }
  return trial;
}

KernelTrial KeptTrial(TrialOf what, const TrainConfig& config, const std::string& file) {
  if (file.empty()) return Try(what, config);
  const std::vector<std::string> names = NamesOf(what, config);
  if (std::optional<KernelTrial> kept = Parse(file, names)) return *kept;
  const bool is_damaged = access(file.c_str(), F_OK) == 0;
  const KernelTrial trial = Try(what, config);
  if (!Write(trial, file, is_damaged)) return trial;
  return Parse(file, names).value_or(trial);
}

std::string TrialFile(TrialOf what, const TrainConfig& config) {
  const std::string folder = MachineCacheFile(what == TrialOf::kGemm ? "gemm" : "attention");
  if (folder.empty()) return "";
  const ModelConfig& model = config.model;
  std::string shape;
  if (what == TrialOf::kGemm) {
    for (const GemmShape& product : GemmShapesOf(config)) {
      if (product.pass != GemmPass::kForward) continue;
      absl::StrAppend(&shape, shape.empty() ? "" : "_", product.inputs, "x", product.outputs);
    }
  } else {
    shape = absl::StrCat(model.heads, ".", model.KvHeads(), "x", model.hidden / model.heads, "x",
                         model.sequence, "w", model.WindowOf(0));
  }
  return absl::StrCat(folder, "/", kernels::Gemm().instruction_set, "-", NameOf(config.precision),
                      "-", shape, "-", at::get_num_threads());
}

absl::StatusOr<KernelChoice> Choose(TrialOf what, const TrainConfig& config, absl::string_view kept,
                                    Group& group) {
  const bool is_gemm = what == TrialOf::kGemm;
  const KernelLibrary set = is_gemm ? config.gemm : config.attention;
  if (set != KernelLibrary::kAuto) {
    return KernelChoice{
        set, absl::StrCat(NameOf(set), is_gemm ? " (train.gemm)" : " (train.attention)")};
  }
  if (const std::optional<GemmLibraries> before = GemmLibraries::FromText(kept)) {
    return KernelChoice{*before, absl::StrCat(kept, " (as before)")};
  }
  const bool is_cpu = config.device == DeviceKind::kCpu;
  if (!is_cpu || config.precision == Precision::kFp16) {
    return KernelChoice{KernelLibrary::kAten, std::string(NameOf(KernelLibrary::kAten))};
  }
  KernelTrial trial;
  if (group.rank() == 0) trial = KeptTrial(what, config, TrialFile(what, config));
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        group.FromFirst(group.rank() == 0 ? trial.Faster() : ""));
  const std::optional<GemmLibraries> faster = GemmLibraries::FromText(text);
  if (!faster) return absl::DataLossError(absl::StrCat("rank 0 chose '", text, "' for products"));
  return KernelChoice{*faster, group.rank() == 0 ? Describe(trial, *faster) : "", trial.rates};
}

}  // namespace weft::train
