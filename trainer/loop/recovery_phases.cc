#include "trainer/loop/recovery_phases.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"

namespace weft::train {
namespace {

constexpr std::array<absl::string_view, 7> kNames = {"start", "load",  "meet",      "join",
                                                     "build", "state", "first step"};

// 0: not there, or no number above 0.
int64_t Number(const char* variable) {
  const char* text = std::getenv(variable);
  int64_t number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number)) return 0;
  return std::max<int64_t>(number, 0);
}

}  // namespace

absl::string_view NameOf(RecoveryPhase phase) { return kNames[static_cast<size_t>(phase)]; }

RecoveryPhases RecoveryPhases::FromEnvironment(int64_t loaded_ns, bool is_spare) {
  RecoveryPhases phases;
  const int64_t started = Number("WEFT_GENERATION_NS");
  if (started == 0) return phases;
  phases.pending_ = true;
  phases.spare_ = is_spare;
  phases.rank_ = static_cast<int>(Number("RANK"));
  phases.generation_ = static_cast<int>(Number("WEFT_GENERATION"));
  const int64_t ended = Number("WEFT_LAST_END_NS");
  phases.begin_ns_ = ended > 0 && ended < started ? ended : started;
  phases.ends_ = {{RecoveryPhase::kStart, started},
                  {RecoveryPhase::kLoad, std::max(loaded_ns, started)}};
  return phases;
}

void RecoveryPhases::Note(RecoveryPhase phase) {
  if (!pending_) return;
  while (!ends_.empty() && ends_.back().first >= phase) ends_.pop_back();
  ends_.emplace_back(phase, SystemClock::Nanoseconds());
}

std::string RecoveryPhases::ToText() const {
  if (!pending_) return "";
  std::string text =
      absl::StrCat(rank_, " ", generation_, " ", static_cast<int>(spare_), " ", begin_ns_);
  for (const auto& [phase, end] : ends_) {
    absl::StrAppend(&text, " ", static_cast<int>(phase), " ", end);
  }
  return text;
}

absl::StatusOr<RecoveryPhases> RecoveryPhases::FromText(absl::string_view text) {
  RecoveryPhases phases;
  if (text.empty()) return phases;
  std::vector<int64_t> numbers;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(word, &number)) {
      return absl::DataLossError(absl::StrCat("'", text, "' are no phases of a recovery"));
    }
    numbers.push_back(number);
  }
  constexpr size_t kFixed = 4;
  bool is_right = numbers.size() >= kFixed && numbers.size() % 2 == 0;
  for (size_t i = kFixed; is_right && i < numbers.size(); i += 2) {
    is_right = numbers[i] >= 0 && numbers[i] < static_cast<int64_t>(kNames.size());
  }
  if (!is_right) {
    return absl::DataLossError(absl::StrCat("'", text, "' are no phases of a recovery"));
  }
  phases.pending_ = true;
  phases.rank_ = static_cast<int>(numbers[0]);
  phases.generation_ = static_cast<int>(numbers[1]);
  phases.spare_ = numbers[2] != 0;
  phases.begin_ns_ = numbers[3];
  for (size_t i = kFixed; i < numbers.size(); i += 2) {
    phases.ends_.emplace_back(static_cast<RecoveryPhase>(numbers[i]), numbers[i + 1]);
  }
  return phases;
}

std::vector<std::pair<RecoveryPhase, double>> RecoveryPhases::Milliseconds() const {
  std::vector<std::pair<RecoveryPhase, double>> phases;
  int64_t begin = begin_ns_;
  for (const auto& [phase, end] : ends_) {
    phases.emplace_back(phase, static_cast<double>(end - begin) * 1e-6);
    begin = end;
  }
  return phases;
}

std::string RecoveryPhases::Sentence() const {
  const double whole =
      ends_.empty() ? 0 : static_cast<double>(ends_.back().second - begin_ns_) * 1e-6;
  std::string text = absl::StrFormat(
      "rank %d (generation %d) is back %.0f ms after its end was seen:", rank_, generation_, whole);
  const char* comma = " ";
  for (const auto& [phase, milliseconds] : Milliseconds()) {
    absl::StrAppendFormat(&text, "%s%s %.0f", comma, NameOf(phase), milliseconds);
    if (phase == RecoveryPhase::kLoad && spare_) absl::StrAppend(&text, " (spare process)");
    comma = ", ";
  }
  return absl::StrCat(text, " ms");
}

}  // namespace weft::train
