#include "collectives/process_end.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/failure.h"

namespace weft::collectives {
namespace {

constexpr absl::string_view kKilled = "was killed by signal ";
constexpr absl::string_view kExited = "exited with status ";
// Longer than any last line that names what it is about.
constexpr size_t kCauseMost = 400;

// Signals that a process's own instructions raise, or that it sends itself by abort().
constexpr std::array kOwnSignals = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};

// What follows the number that `text` begins with.
bool TakeNumber(absl::string_view& text, int& number) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[digits]))) {
    ++digits;
  }
  if (!absl::SimpleAtoi(text.substr(0, digits), &number)) return false;
  text.remove_prefix(digits);
  return true;
}

bool IsOwnFault(const ProcessEnd& end, int rank) {
  if (end.signal != 0) return IsOwnSignal(end.signal);
  const Failure failure = FailureOfEnd(end);
  switch (failure.scope) {
    case FailureScope::kUnknown:
    case FailureScope::kRequest:
      return true;
    case FailureScope::kProcess:
      return failure.rank == rank;
    case FailureScope::kConnection:
    case FailureScope::kPath:
    case FailureScope::kDevice:
      return false;
  }
  return true;
}

// With one '#' for each number.
std::string WithoutNumbers(absl::string_view text) {
  std::string plain;
  for (const char c : text) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) {
      plain += c;
    } else if (plain.empty() || plain.back() != '#') {
      plain += '#';
    }
  }
  return plain;
}

}  // namespace

std::string ToText(const ProcessEnd& end) {
  if (end.signal != 0) {
    const char* name = sigabbrev_np(end.signal);
    return absl::StrCat(kKilled, end.signal,
                        name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  }
  if (end.status < 0) return end.cause;
  return absl::StrCat(kExited, end.status, end.cause.empty() ? "" : absl::StrCat(": ", end.cause));
}

ProcessEnd ParseProcessEnd(absl::string_view text) {
  ProcessEnd end;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, kKilled) && TakeNumber(rest, end.signal)) return end;
  rest = text;
  if (absl::ConsumePrefix(&rest, kExited) && TakeNumber(rest, end.status) &&
      (rest.empty() || absl::ConsumePrefix(&rest, ": "))) {
    end.cause = std::string(rest);
    return end;
  }
  return {.signal = 0, .status = -1, .cause = std::string(text)};
}

std::string CauseFrom(absl::string_view line) {
  std::string cause;
  for (const char c : line) {
    if (absl::ascii_isprint(static_cast<unsigned char>(c))) cause += c;
  }
  if (cause.size() <= kCauseMost) return cause;
  // The end has the scope.
  const size_t half = kCauseMost / 2;
  return absl::StrCat(cause.substr(0, half), "...", cause.substr(cause.size() - half));
}

// DescribeFailure wrote it in brackets at the end.
Failure FailureOfEnd(const ProcessEnd& end) {
  const absl::string_view line = end.cause;
  const size_t open = line.rfind('[');
  if (open == absl::string_view::npos || line.back() != ']') return {};
  return ParseFailure(line.substr(open + 1, line.size() - open - 2));
}

bool IsOwnSignal(int signal) {
  return std::find(kOwnSignals.begin(), kOwnSignals.end(), signal) != kOwnSignals.end();
}

bool IsSameFault(const ProcessEnd& first, const ProcessEnd& second, int rank) {
  return IsOwnFault(first, rank) && IsOwnFault(second, rank) && first.signal == second.signal &&
         first.status == second.status &&
         WithoutNumbers(first.cause) == WithoutNumbers(second.cause);
}

}  // namespace weft::collectives
