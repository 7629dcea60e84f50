#include "trainer/kernel_choice/kernel_trial.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "trainer/kernels/gemm.h"
#include "trainer/kernels/instruction_sets.h"
#include "trainer/model/attention_libraries.h"
#include "trainer/model/attention_tiles.h"
#include "trainer/model/gpt.h"
#include "trainer/model/packed_weights.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

// A library that is no faster than this is no other choice, but the same one measured twice.
constexpr double kClearly = 1.05;
// What our own loops may be slower over all: a product of theirs brings bias, activation or
// residual sum, which are passes of their own behind another library's.
constexpr double kAlike = 1.02;
constexpr int kRoundsFewest = 3, kRoundsMost = 30;

// Seconds: processor time of the calling thread where it computes alone, which leaves out what
// other programs took; else wall time.
double Now() {
  timespec now = {};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double WallSeconds() { return 1e-9 * static_cast<double>(SystemClock::Nanoseconds()); }

// CPU time that other processes of this machine use from now on.
class OtherProcesses {
 public:
  OtherProcesses() : before_(Read()) {}
  // On average, in cores; 0 where /proc does not say.
  double Cores() const {
    const Times now = Read();
    const double wall = now.wall - before_.wall;
    if (wall <= 0 || now.all <= 0) return 0;
    return std::max(0.0, (now.all - before_.all - (now.own - before_.own)) / wall);
  }

 private:
  struct Times {
    double all = 0, own = 0, wall = 0;  // seconds; of all processes, and of this one
  };
  static Times Read() {
    Times times{.wall = WallSeconds()};
    std::ifstream file("/proc/stat");
    std::string word;
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    if (file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal) {
      times.all = (user + nice + system + irq + softirq + steal) /
                  static_cast<double>(sysconf(_SC_CLK_TCK));
    }
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
      times.own += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
    }
    return times;
  }
  const Times before_;
};

// A library at one product.
struct Contender {
  KernelLibrary library;
  std::function<void()> run;
  double extra = 0;                                       // seconds that are not in `run`
  double best = std::numeric_limits<double>::infinity();  // seconds of one run
  double next = std::numeric_limits<double>::infinity();  // the second shortest
};

// Whether more rounds may change what is taken: two libraries are close, or the two shortest times
// of one are not.
bool IsOpen(const std::vector<Contender>& contenders) {
  constexpr double kClose = 1.1, kScattered = 1.03;
  double best = std::numeric_limits<double>::infinity();
  for (const Contender& each : contenders) best = std::min(best, each.best + each.extra);
  bool is_close = false;
  for (const Contender& each : contenders) {
    const double over = (each.best + each.extra) / best;
    is_close = is_close || (over > 1 && over < kClose);
    if (over < kClose && each.next > kScattered * each.best) return true;
  }
  return is_close;
}

// When a trial ends, by the wall clock.
struct Deadlines {
  double own = 0;  // until which there may be further rounds of one product
  double all = 0;  // behind which a product has one round alone
};

// Rounds in turns until the outcome is clear or the time is over, three at least: one, where other
// programs have made the whole trial long.
void Compete(std::vector<Contender>& contenders, const Deadlines& deadlines) {
  constexpr double kShortest = 5e-5;  // seconds of a timed piece: many readings of the clock
  std::vector<int> repeats;
  for (Contender& each : contenders) {
    each.run();  // generates code, packs weights, touches memory
    const double begin = Now();
    each.run();
    const double took = std::max(1e-7, Now() - begin);
    each.best = took;
    repeats.push_back(1 + std::min(20, static_cast<int>(kShortest / took)));
  }
  for (int round = 0; round < kRoundsMost; ++round) {
    const double now = WallSeconds();
    if (round > 0 && now > deadlines.all) return;
    if (round >= kRoundsFewest && (now > deadlines.own || !IsOpen(contenders))) return;
    for (size_t turn = 0; turn < contenders.size(); ++turn) {
      // Forwards and backwards: nobody always comes behind the same one.
      const size_t at = round % 2 == 0 ? turn : contenders.size() - 1 - turn;
      Contender& each = contenders[at];
      const double begin = Now();
      for (int i = 0; i < repeats[at]; ++i) each.run();
      const double took = std::max(1e-9, (Now() - begin) / repeats[at]);
      each.next = std::min(each.next, std::max(each.best, took));
      each.best = std::min(each.best, took);
    }
  }
}

void SetRates(const std::vector<Contender>& contenders, double flops, KernelRates& row) {
  for (const Contender& each : contenders) {
    const double rate = flops / (each.best + each.extra);
    switch (each.library) {
      case KernelLibrary::kWeft:
        row.weft = rate;
        break;
      case KernelLibrary::kOneDnn:
        row.onednn = rate;
        break;
      case KernelLibrary::kAuto:
      case KernelLibrary::kAten:
        row.aten = rate;
        break;
    }
  }
}

double FlopsOf(const TrialProduct& product) {
  return 2.0 * static_cast<double>(product.rows * product.shape.inputs * product.shape.outputs);
}

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
  if (FlopsOf(product) <= most) return product;
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
    const double begin = Now();
    b.scalar_type() == at::kFloat ? pack(float{}) : pack(kernels::Bf16{});
    best = std::min(best, Now() - begin);
  }
  return best;
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
  for (KernelLibrary library : LibrariesOf(TrialOf::kGemm, config)) {
    const bool packs = library == KernelLibrary::kWeft && product.uses > 1;
    Contender contender{.library = library, .run = [&, library, packs] {
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
                  .part = FlopsOf(product) / FlopsOf(whole)};
  SetRates(contenders, FlopsOf(product), row);
  return row;
}

std::string NameOfWindow(int64_t window) { return absl::StrCat("attention.window.", window); }

// Forward and backward: two products and five, of which a causal mask leaves half.
double AttentionFlops(int64_t samples, int64_t heads, int64_t width, int64_t length,
                      int64_t window) {
  const int64_t seen = window > 0 ? std::min(window, length) : length;
  return 7.0 * static_cast<double>(samples * heads * width * length * seen);
}

// What one rank attends with: its heads, where the context axis exchanges heads those that it has
// then, and whole samples.
struct AttentionWork {
  int64_t samples = 0, heads = 0, kv_heads = 0, width = 0, length = 0, window = 0;
  double flops() const { return AttentionFlops(samples, heads, width, length, window); }
};
AttentionWork AttentionOf(const TrainConfig& config, const StepPlan& plan, int64_t window) {
  const ModelConfig& model = config.model;
  int64_t heads = model.heads / plan.sizes.tensor;
  int64_t kv_heads = std::max<int64_t>(1, model.KvHeads() / plan.sizes.tensor);
  if (plan.sizes.context > 1 && config.context_method == ContextMethod::kUlysses) {
    heads = std::max<int64_t>(1, heads / plan.sizes.context);
    kv_heads = std::max<int64_t>(1, kv_heads / plan.sizes.context);
  }
  if (heads % kv_heads != 0) kv_heads = 1;
  return {plan.micro_rows, heads, kv_heads, model.hidden / model.heads, model.sequence, window};
}

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
  for (KernelLibrary library : LibrariesOf(TrialOf::kAttention, config)) {
    contenders.push_back({.library = library, .run = [&, library] {
                            AttendBackward(library, dout, inputs,
                                           Attend(library, inputs, work.window), work.window,
                                           gradients);
                          }});
  }
  Compete(contenders, deadlines);
  KernelRates row{.name = NameOfWindow(whole.window),
                  .flops = flops,
                  .rows = whole.samples * whole.length,
                  .part = work.flops() / whole.flops()};
  SetRates(contenders, work.flops(), row);
  return row;
}

// The rows of a trial without their rates.
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

// How many times the register peak a rate may be, and no error: clocks vary, and AMX's by several
// times, as virtual machines that share a core share its multiplier.
double MostOverPeak(const TrainConfig& config) {
  const bool by_amx =
      config.precision == Precision::kBf16 && kernels::CpuHas(kernels::InstructionSet::kAmx);
  return by_amx ? 8 : 1.5;
}

absl::Status Damaged(const std::string& what) { return absl::DataLossError(what); }

absl::StatusOr<double> NumberAfter(std::istream& stream, absl::string_view name, double least,
                                   double most) {
  std::string word, text;
  double value = 0;
  if (!(stream >> word >> text) || word != name || !absl::SimpleAtod(text, &value)) {
    return Damaged(absl::StrCat("'", word, " ", text, "' is not ", name, " and a number"));
  }
  if (!(value >= least && value <= most)) {
    return Damaged(absl::StrFormat("%s is %s, and not from %.4g to %.4g", name, text, least, most));
  }
  return value;
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

double KernelRates::best() const { return std::max({aten, weft, onednn}); }

std::vector<KernelLibrary> LibrariesOf(TrialOf what, const TrainConfig& config) {
  std::vector<KernelLibrary> libraries = {KernelLibrary::kAten, KernelLibrary::kWeft};
  if (what == TrialOf::kGemm && config.precision == Precision::kFp32 && HasOneDnn()) {
    libraries.push_back(KernelLibrary::kOneDnn);
  }
  return libraries;
}

std::vector<TrialProduct> ProductsOf(const TrainConfig& config, const StepPlan& plan) {
  ModelConfig model = config.model;
  model.layers = 1;  // all have the same matrices
  ModelPart part = WholeModel(model);
  part.tensor_size = plan.sizes.tensor;
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence);
  const int64_t width = config.precision == Precision::kFp32 ? 4 : 2;
  const int64_t head_rows = LossRows(rows, model.vocabulary / plan.sizes.tensor, width,
                                     config.loss_rows, /*on_gpu=*/false);
  const int64_t head_chunks = (rows + head_rows - 1) / head_rows;
  const PackedPart packed = plan.PartPacked(config);
  std::vector<TrialProduct> products;
  for (const ParameterSpec& spec : GptParameters(model, part)) {
    const bool is_head = spec.name == "head.weight" || spec.name == "embedding.token";
    const bool is_looked_up =
        spec.name == "embedding.position" || (spec.name == "embedding.token" && !model.tied);
    if (!spec.is_matrix || is_looked_up || absl::StrContains(spec.name, ".router.") ||
        spec.elements() == 0) {
      continue;
    }
    const int64_t shared =
        spec.is_expert ? std::max<int64_t>(1, rows * model.top_k / model.experts) : rows;
    for (GemmPass pass :
         {GemmPass::kForward, GemmPass::kInputGradient, GemmPass::kWeightGradient}) {
      const bool is_gradient = pass == GemmPass::kWeightGradient;
      TrialProduct product{.shape = {pass, spec.shape[1], spec.shape[0]},
                           .rows = is_head ? head_rows : shared};
      product.flops = 2.0 * static_cast<double>(spec.elements() * (is_head ? rows : shared) *
                                                (is_head ? 1 : config.model.layers));
      product.adds =
          is_gradient && (plan.pipeline.micro_batches > 1 || (is_head && head_chunks > 1));
      product.into_fp32 =
          is_gradient && (plan.ReducesInFp32(config) || (is_head && head_chunks > 1));
      const bool keeps = packed == PackedPart::kAll || (packed == PackedPart::kHead && is_head);
      if (keeps && !is_gradient) {
        product.uses = plan.pipeline.micro_batches * (is_head ? head_chunks : 1);
      }
      const auto same = std::find_if(products.begin(), products.end(), [&](const auto& other) {
        return other.shape == product.shape;
      });
      if (same == products.end()) {
        products.push_back(product);
      } else {
        same->flops += product.flops;
      }
    }
  }
  return products;
}

std::vector<int64_t> WindowsOf(const ModelConfig& model) {
  std::set<int64_t> windows;
  for (int64_t layer = 0; layer < model.layers; ++layer) windows.insert(model.WindowOf(layer));
  return {windows.begin(), windows.end()};
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
  for (const TrialProduct& product : products) flops.push_back(FlopsOf(product));
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

std::string ToText(const KernelTrial& trial, TrialOf what, const TrainConfig& config) {
  std::string text = absl::StrFormat("trial 2\nregisters %.4g\nothers %.2f\n", trial.register_peak,
                                     trial.other_cores);
  for (const KernelRates& row : trial.rates) {
    absl::StrAppendFormat(&text, "%s rows %d part %.4g", row.name, row.rows, row.part);
    for (KernelLibrary library : LibrariesOf(what, config)) {
      absl::StrAppendFormat(&text, " %s %.4g", NameOf(library), row.Of(library));
    }
    text += "\n";
  }
  return text;
}

absl::StatusOr<KernelTrial> ParseTrial(const std::string& text, TrialOf what,
                                       const TrainConfig& config, const StepPlan& plan) {
  constexpr double kAny = 1e18;
  std::istringstream stream(text);
  KernelTrial trial;
  if (const auto format = NumberAfter(stream, "trial", 2, 2); !format.ok()) return format.status();
  const auto registers = NumberAfter(stream, "registers", 1, kAny);
  if (!registers.ok()) return registers.status();
  const auto others = NumberAfter(stream, "others", 0, kAny);
  if (!others.ok()) return others.status();
  trial.register_peak = *registers;
  trial.other_cores = *others;
  for (KernelRates row : RowsOf(what, config, plan)) {
    std::string word;
    if (!(stream >> word) || word != row.name) {
      return Damaged(absl::StrCat("'", word, "' is where ", row.name, " belongs"));
    }
    const auto in_row = [&row](const absl::Status& status) {
      return Damaged(absl::StrCat(row.name, ": ", status.message()));
    };
    const auto rows =
        NumberAfter(stream, "rows", static_cast<double>(row.rows), static_cast<double>(row.rows));
    if (!rows.ok()) return in_row(rows.status());
    const auto part = NumberAfter(stream, "part", 1e-9, 1);
    if (!part.ok()) return in_row(part.status());
    row.part = *part;
    for (KernelLibrary library : LibrariesOf(what, config)) {
      const auto rate =
          NumberAfter(stream, NameOf(library), 1, MostOverPeak(config) * trial.register_peak);
      if (!rate.ok()) return in_row(rate.status());
      SetRates({{.library = library, .run = nullptr, .best = 1}}, *rate, row);
    }
    trial.rates.push_back(row);
  }
  if (std::string more; stream >> more) return Damaged(absl::StrCat("'", more, "' is too much"));
  return trial;
}

}  // namespace weft::train
