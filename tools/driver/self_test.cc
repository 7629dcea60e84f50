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
#include "collectives/process_end.h"

namespace weft::driver {
namespace {

// The programs beside this one; those that a build does not have are left out.
std::vector<std::string> OwnCommands() {
  std::error_code error;
  const std::filesystem::path folder =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<std::string> commands;
  for (const auto& [program, arguments] :
       {std::pair("weft-doctor", ""), std::pair("weft-bw", " link --ranks 2 -V -s 1M -D 500ms")}) {
    const std::filesystem::path path = folder / program;
    if (std::filesystem::exists(path, error)) {
      commands.push_back(absl::StrCat("'", path.string(), "'", arguments));
    }
  }
  return commands;
}

std::string LastLine(absl::string_view text) {
  std::string last;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::StripAsciiWhitespace(line).empty()) last = collectives::CauseFrom(line);
  }
  return last;
}

}  // namespace

SelfTestResult RunSelfTest(const SelfTestOptions& options) {
  const SystemClock clock;
  const absl::Time end = clock.Now() + options.limit;
  const std::vector<std::string> commands =
      options.commands.empty() ? OwnCommands() : options.commands;
  for (const std::string& command : commands) {
    const absl::Duration left = std::max(end - clock.Now(), absl::Milliseconds(1));
    const absl::StatusOr<CommandOutput> said = RunCommand({"/bin/sh", "-c", command}, left);
    if (said.ok() && said->status == 0) continue;
    return {.passed = false,
            .text = said.ok() ? absl::StrCat("'", command, "' ended with status ", said->status,
                                             ": ", LastLine(said->text))
                              : absl::StrCat("'", command, "': ", said.status().message())};
  }
  return {.passed = true, .text = absl::StrCat(commands.size(), " tests passed")};
}

}  // namespace weft::driver
