#include "tools/driver/self_test.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/command.h"
#include "base/status.h"
#include "collectives/process_end.h"

namespace weft::driver {
namespace {

// For the hosts near a suspected one, which have been told to come when its test began.
constexpr absl::Duration kMeetingMost = absl::Seconds(10);
// A pair that has this time and to which nobody comes says so; one that says nothing hangs.
const absl::Duration kPairLeast = kMeetingMost + absl::Seconds(2);

// What is run, and how it is called where it fails.
struct Part {
  std::string name;
  std::vector<std::string> command;
};

std::string OwnProgram() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::vector<Part> PartsOf(const SelfTestOptions& options) {
  std::vector<Part> parts;
  for (const std::string& command : options.commands) {
    parts.push_back({absl::StrCat("'", command, "'"), {"/bin/sh", "-c", command}});
  }
  if (parts.empty()) {
    for (const char* name : {"host", "links"}) {
      parts.push_back({name, {OwnProgram(), "--self-test-part", name}});
    }
  }
  return parts;
}

// The last line, or the last one of a process of this program, around which a launcher writes more.
std::string CauseIn(absl::string_view text) {
  std::string last, own;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StripAsciiWhitespace(line).empty()) last = collectives::CauseFrom(line);
    const size_t at = line.find(kSelfTestSays);
    if (at != line.npos) own = collectives::CauseFrom(line.substr(at + sizeof(kSelfTestSays) - 1));
  }
  return own.empty() ? last : own;
}

}  // namespace

SelfTestResult RunSelfTest(const SelfTestOptions& options) {
  const SystemClock clock;
  const absl::Time end = clock.Now() + options.limit;
  const auto left = [&] { return std::max(end - clock.Now(), absl::Milliseconds(1)); };
  // kDeadlineExceeded: it says nothing of this host, as nobody came or there was no time for it.
  const auto run = [&](const Part& part, absl::Duration most) -> absl::Status {
    const absl::StatusOr<CommandOutput> said = RunCommand(part.command, most);
    if (absl::IsDeadlineExceeded(said.status()) && most >= kPairLeast) {
      return absl::FailedPreconditionError(absl::StrCat(part.name, ": ", said.status().message()));
    }
    if (!said.ok()) return Annotate(said.status(), part.name);
    if (said->status == 0) return absl::OkStatus();
    const std::string why =
        absl::StrCat(part.name, " ended with status ", said->status, ": ", CauseIn(said->text));
    return said->status == kNobodyCame ? absl::DeadlineExceededError(why)
                                       : absl::FailedPreconditionError(why);
  };
  int passed = 0;
  for (const Part& part : PartsOf(options)) {
    const absl::Status status = run(part, left());
    if (!status.ok()) return {.passed = false, .text = std::string(status.message())};
    ++passed;
  }
  int pairs = 0;
  absl::Status failed;
  for (int helper = 0; helper < options.helpers; ++helper) {
    // One that hangs leaves the others their share of the time.
    const absl::Status status =
        run({absl::StrCat("pair ", helper), PairCommand(helper, kMeetingMost)},
            left() / (options.helpers - helper));
    if (status.ok()) ++pairs;
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) failed = status;
  }
  if (pairs == 0 && !failed.ok()) {
    return {.passed = false, .text = std::string(failed.message())};
  }
  std::string text = absl::StrCat(passed + pairs, " tests passed");
  if (options.helpers > 0) {
    absl::StrAppend(&text, ", ", pairs, " of them with ", options.helpers, " hosts near it");
  }
  return {.passed = true, .text = std::move(text)};
}

std::vector<std::string> PairCommand(int helper, absl::Duration patience) {
  return {"/bin/sh",
          "-c",
          "WEFT_JOB_ID=\"$WEFT_JOB_ID.$1\" exec \"$2\" --self-test-part group --test-limit \"$3\"",
          "pair",
          absl::StrCat(helper),
          OwnProgram(),
          absl::FormatDuration(patience)};
}

}  // namespace weft::driver
