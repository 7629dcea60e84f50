#include "trainer/kernel_choice/trial_file.h"

#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/kernels/instruction_sets.h"

namespace weft::train {
namespace {

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
      row.Set(library, *rate);
    }
    trial.rates.push_back(row);
  }
  if (std::string more; stream >> more) return Damaged(absl::StrCat("'", more, "' is too much"));
  return trial;
}

}  // namespace weft::train
