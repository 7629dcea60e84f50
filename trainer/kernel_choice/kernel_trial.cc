#include "trainer/kernel_choice/kernel_trial.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "trainer/kernel_choice/competition.h"
#include "trainer/kernel_choice/other_processes.h"
#include "trainer/kernels/gemm.h"
#include "trainer/model/attention_libraries.h"
#include "trainer/model/attention_tiles.h"
#include "trainer/model/gpt.h"
#include "trainer/model/packed_weights.h"

namespace weft::train {
namespace {

// A library that is no faster than this is no other choice, but the same one measured twice.
constexpr double kClearly = 1.05;
// What our own loops may be slower over all: a product of theirs brings bias, activation or
// residual sum, which are passes of their own behind another library's.
constexpr double kAlike = 1.02;

// The most FLOPs of a product in one piece, so that all together have no more than `all`: small
// ones are run whole, and what they leave is the large ones'.
double MostFlops(std::vector<double> flops, double all) {
  std::sort(flops.begin(), flops.end());
  double most = 0;
  for (size_t i = 0; i < flops.size(); ++i) {
    most = all / static_cast<double>(flops.size() - i);
    all -= std::min(most, flops[i]);
  }
  return most;
}

// Cut to about `most` FLOPs: rows, but not below a block of them, then the wider side.
TrialProduct Cut(TrialProduct product, double most) {
  constexpr int64_t kRowsFewest = 256;
  int64_t& inputs = product.shape.inputs;
  int64_t& outputs = product.shape.outputs;
  if (product.flops_once() <= most) return product;
  product.rows =
      std::clamp(static_cast<int64_t>(most / (2.0 * static_cast<double>(inputs * outputs))),
                 std::min(product.rows, kRowsFewest), product.rows);
  int64_t& wider = inputs > outputs ? inputs : outputs;
  const int64_t narrower = std::min(inputs, outputs);
  wider =
      std::clamp(static_cast<int64_t>(most / (2.0 * static_cast<double>(product.rows * narrower))),
                 std::min(narrower, wider), wider);
  return product;
}

// Seconds in which our loops pack a weight.
double PackingSeconds(PackedWeight& packed, int64_t& changes, const at::Tensor& b) {
  double best = std::numeric_limits<double>::infinity();
  auto pack = [&](auto number) {
    using T = decltype(number);
    const bool rows = b.stride(1) == 1;
    packed.Panels(kernels::GemmOperand<T>{static_cast<const T*>(b.data_ptr()),
                                          rows ? b.stride(0) : b.stride(1), !rows},
                  b.size(1), b.size(0), b.size(1));
  };
  for (int round = 0; round < kRoundsFewest; ++round) {
    ++changes;
    const double begin = TimingSeconds();
    b.scalar_type() == at::kFloat ? pack(float{}) : pack(kernels::Bf16{});
    best = std::min(best, TimingSeconds() - begin);
  }
  return best;
}

// `contenders` are of `libraries`, in their order.
void SetRates(const std::vector<KernelLibrary>& libraries, const std::vector<Contender>& contenders,
              double flops, KernelRates& row) {
  for (size_t i = 0; i < libraries.size(); ++i) {
    row.Set(libraries[i], flops / contenders[i].seconds());
  }
}

KernelRates TryProduct(const TrainConfig& config, const TrialProduct& whole, double most,
                       const Deadlines& deadlines) {
  const TrialProduct product = Cut(whole, most);
  const int64_t inputs = product.shape.inputs, outputs = product.shape.outputs;
  const auto type = TypeOf(config.precision);
  const at::Tensor x = at::ones({product.rows, inputs}, type);
  const at::Tensor weight = at::ones({outputs, inputs}, type);
  const at::Tensor y = at::ones({product.rows, outputs}, type);
  at::Tensor a, b, out;
  switch (product.shape.pass) {
    case GemmPass::kForward:
      a = x, b = weight.t(), out = y;
      break;
    case GemmPass::kInputGradient:
      a = y, b = weight, out = x;
      break;
    case GemmPass::kWeightGradient:
      a = y.t(), b = x, out = product.into_fp32 ? weight.to(at::kFloat) : weight;
      break;
  }
  int64_t changes = 0;
  PackedWeights packed([&changes] { return changes; });
  PackedWeight& copy = packed.Of(0, product.shape.pass);
  std::vector<Contender> contenders;
  const std::vector<KernelLibrary> libraries = LibrariesOf(TrialOf::kGemm, config);
  for (const KernelLibrary library : libraries) {
    const bool packs = library == KernelLibrary::kWeft && product.uses > 1;
    Contender contender{.run = [&, library, packs] {
      Multiply(library, a, b, out, product.adds, {}, packs ? &copy : nullptr);
    }};
    if (packs) {
      contender.extra = PackingSeconds(copy, changes, b) / static_cast<double>(product.uses);
    }
    contenders.push_back(std::move(contender));
  }
  Compete(contenders, deadlines);
  KernelRates row{.name = ToString(whole.shape),
                  .flops = whole.flops,
                  .rows = whole.rows,
                  .part = product.flops_once() / whole.flops_once()};
  SetRates(libraries, contenders, product.flops_once(), row);
  return row;
}

std::string NameOfWindow(int64_t window) { return absl::StrCat("attention.window.", window); }

KernelRates TryAttention(const TrainConfig& config, const AttentionWork& whole, double flops,
                         double most, const Deadlines& deadlines) {
  constexpr int64_t kLengthFewest = 256;
  AttentionWork work = whole;
  work.samples = std::clamp<int64_t>(
      static_cast<int64_t>(most / whole.flops() * static_cast<double>(whole.samples)), 1,
      whole.samples);
  while (work.flops() > most && work.length / 2 >= kLengthFewest) work.length /= 2;
  auto rows = [&](int64_t of_heads) {
    return at::ones({work.samples, work.length, of_heads, work.width}, TypeOf(config.precision))
        .transpose(1, 2);
  };
  auto three = [&] {
    return AttentionInputs{rows(work.heads), rows(work.kv_heads), rows(work.kv_heads)};
  };
  const AttentionInputs inputs = three(), gradients = three();
  const at::Tensor dout = rows(work.heads);
  std::vector<Contender> contenders;
  const std::vector<KernelLibrary> libraries = LibrariesOf(TrialOf::kAttention, config);
  for (const KernelLibrary library : libraries) {
    contenders.push_back({.run = [&, library] {
      AttendBackward(library, dout, inputs, Attend(library, inputs, work.window), work.window,
                     gradients);
    }});
  }
  Compete(contenders, deadlines);
  KernelRates row{.name = NameOfWindow(whole.window),
                  .flops = flops,
                  .rows = whole.samples * whole.length,
                  .part = work.flops() / whole.flops()};
  SetRates(libraries, contenders, work.flops(), row);
  return row;
}

}  // namespace

double KernelRates::Of(KernelLibrary library) const {
  switch (library) {
    case KernelLibrary::kWeft:
      return weft;
    case KernelLibrary::kOneDnn:
      return onednn;
    case KernelLibrary::kAuto:
    case KernelLibrary::kAten:
      break;
  }
  return aten;
}

void KernelRates::Set(KernelLibrary library, double rate) {
  switch (library) {
    case KernelLibrary::kWeft:
      weft = rate;
      break;
    case KernelLibrary::kOneDnn:
      onednn = rate;
      break;
    case KernelLibrary::kAuto:
    case KernelLibrary::kAten:
      aten = rate;
      break;
  }
}

double KernelRates::best() const { return std::max({aten, weft, onednn}); }

std::vector<KernelLibrary> LibrariesOf(TrialOf what, const TrainConfig& config) {
  std::vector<KernelLibrary> libraries = {KernelLibrary::kAten, KernelLibrary::kWeft};
  if (what == TrialOf::kGemm && config.precision == Precision::kFp32 && HasOneDnn()) {
    libraries.push_back(KernelLibrary::kOneDnn);
  }
  return libraries;
}

std::vector<KernelRates> RowsOf(TrialOf what, const TrainConfig& config, const StepPlan& plan) {
  std::vector<KernelRates> rows;
  if (what == TrialOf::kGemm) {
    for (const TrialProduct& product : ProductsOf(config, plan)) {
      rows.push_back(
          {.name = ToString(product.shape), .flops = product.flops, .rows = product.rows});
    }
    return rows;
  }
  for (int64_t window : WindowsOf(config.model)) {
    const AttentionWork work = AttentionOf(config, plan, window);
    int64_t layers = 0;
    for (int64_t layer = 0; layer < config.model.layers; ++layer) {
      layers += config.model.WindowOf(layer) == window ? 1 : 0;
    }
    rows.push_back({.name = NameOfWindow(window),
                    .flops = work.flops() * static_cast<double>(layers),
                    .rows = work.samples * work.length});
  }
  return rows;
}

double KernelTrial::TotalRate(KernelLibrary library) const {
  double work = 0, time = 0;
  for (const KernelRates& row : rates) {
    work += row.flops;
    time += row.flops / row.Of(library);  // infinite where it was not tried
  }
  return work / time;
}

std::string KernelTrial::Faster() const {
  constexpr KernelLibrary kAll[] = {KernelLibrary::kWeft, KernelLibrary::kAten,
                                    KernelLibrary::kOneDnn};
  KernelLibrary all = KernelLibrary::kWeft;
  for (KernelLibrary library : kAll) {
    const double margin = all == KernelLibrary::kWeft ? kAlike : 1;
    if (TotalRate(library) > margin * TotalRate(all)) all = library;
  }
  GemmLibraries libraries(all);
  AttentionLibraries attention(all);
  for (const KernelRates& row : rates) {
    KernelLibrary best = all;
    for (KernelLibrary library : kAll) {
      if (row.Of(library) > row.Of(best)) best = library;
    }
    if (row.Of(best) <= kClearly * row.Of(all)) continue;
    int64_t window = 0;
    if (const std::optional<GemmShape> shape = GemmShapeFrom(row.name)) {
      libraries.Set(*shape, best);
    } else if (absl::SimpleAtoi(row.name.substr(row.name.rfind('.') + 1), &window)) {
      attention.Set(window, best);
    }
  }
  const bool is_attention = !rates.empty() && absl::StartsWith(rates[0].name, "attention.");
  return is_attention ? attention.ToText() : libraries.ToText();
}

KernelTrial Try(TrialOf what, const TrainConfig& config, const StepPlan& plan, double seconds) {
  constexpr double kPeakSeconds = 0.02;
  // The share of the register peak by which products are cut to the time, and the share of the time
  // for first rounds: slower products take from the time for further ones.
  constexpr double kLikely = 0.7, kFirstRounds = 0.7;
  const OtherProcesses others;
  KernelTrial trial;
  trial.register_peak =
      kernels::Gemm().register_peak(config.precision == Precision::kBf16, kPeakSeconds) *
      at::get_num_threads();
  const double begin = WallSeconds();
  const std::vector<TrialProduct> products =
      what == TrialOf::kGemm ? ProductsOf(config, plan) : std::vector<TrialProduct>();
  const std::vector<KernelRates> rows = RowsOf(what, config, plan);
  std::vector<double> flops;
  for (const TrialProduct& product : products) flops.push_back(product.flops_once());
  if (products.empty()) {
    for (int64_t window : WindowsOf(config.model)) {
      flops.push_back(AttentionOf(config, plan, window).flops());
    }
  }
  const double runs = static_cast<double>(LibrariesOf(what, config).size()) * (kRoundsFewest + 2);
  const double most =
      MostFlops(flops, kFirstRounds * seconds * kLikely * trial.register_peak / runs);
  double all = 0, so_far = 0;
  for (double each : flops) all += std::min(each, most);
  for (size_t i = 0; i < rows.size(); ++i) {
    so_far += std::min(flops[i], most);
    const Deadlines deadlines{begin + seconds * so_far / all, begin + 2 * seconds};
    if (what == TrialOf::kGemm) {
      trial.rates.push_back(TryProduct(config, products[i], most, deadlines));
    } else {
      const int64_t window = WindowsOf(config.model)[i];
      trial.rates.push_back(
          TryAttention(config, AttentionOf(config, plan, window), rows[i].flops, most, deadlines));
    }
  }
  trial.other_cores = others.Cores();
  return trial;
}

}  // namespace weft::train
