// The end of every program's reading of its command line: parse, make sense of the words, say what
// was wrong.
#ifndef WEFT_TOOLS_COMMAND_LINE_H_
#define WEFT_TOOLS_COMMAND_LINE_H_

#include <errno.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/records.h"
#include "base/status.h"
#include "base/units.h"
#include "base/version.h"

namespace weft {

inline constexpr int kGoOn = -1, kWrongUsage = 2;

// A result that could not be written is a failure, as on a full disk.
inline void EndWithLostOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  std::perror("standard output");
  std::_Exit(EXIT_FAILURE);
}

// --version: "weft-bw 0.1.0".
inline void DeclareVersion(CLI::App& app) {
  app.set_version_flag("--version", absl::StrCat(program_invocation_short_name, " ", Version()));
}

// The longest name of a job that its records keep whole: who looks for those of a longer one finds
// none.
inline constexpr size_t kJobNameBytesMax = sizeof(RecordFileHeader::job) - 1;

// For options of a real number from `min` to `max`: CLI::Range() takes nan for one.
inline CLI::Validator RealRange(double min, double max) {
  const std::string range = absl::StrCat(min, " to ", max);
  return {[min, max, range](std::string& text) {
            double value = 0;
            const bool is_in =
                CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
            return is_in ? std::string() : absl::StrCat("'", text, "' is no number from ", range);
          },
          absl::StrCat("FLOAT in [", min, " - ", max, "]")};
}

// For options that take a job's name.
inline std::string CheckJobName(const std::string& name) {
  if (!name.empty() && name.size() <= kJobNameBytesMax) return "";
  return absl::StrCat("a job's name has 1 to ", kJobNameBytesMax, " bytes, '", name, "' has ",
                      name.size());
}

// For options whose empty value says nothing: a script's "$VARIABLE" that is not set.
inline std::string CheckNotEmpty(const std::string& text) {
  return text.empty() ? "the value is empty; leave the option out, or give it one" : "";
}

// Reads the value of an option: "65536", "64KiB", "32M".
inline absl::Status TakeBytes(absl::string_view option, absl::string_view text, Bytes& bytes) {
  const absl::StatusOr<Bytes> parsed = ParseBytes(text);
  if (!parsed.ok()) return Annotate(parsed.status(), option);
  bytes = *parsed;
  return absl::OkStatus();
}

// Whether a text is a time of 0 or more that is not infinite.
inline bool ParseFinite(absl::string_view text, absl::Duration* value) {
  return absl::ParseDuration(text, value) && *value >= absl::ZeroDuration() &&
         *value < absl::InfiniteDuration();
}

// Reads the value of an option: "500ms", "5s", "1m".
inline absl::Status TakeDuration(absl::string_view option, const std::string& text,
                                 absl::Duration& duration) {
  if (ParseFinite(text, &duration)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " ", text, " is no duration; right are 500ms, 5s, 1m"));
}

// The exit status: 0 after --help and the like; kWrongUsage after a line on standard error, that
// of CLI11 or the name of `app` and what `resolve`, an absl::Status(), returns; or kGoOn.
template <typename Resolve>
int ReadCommandLine(CLI::App& app, int argc, char** argv, const Resolve& resolve) {
  std::atexit(EndWithLostOutput);
  DeclareVersion(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  const absl::Status status = resolve();
  if (status.ok()) return kGoOn;
  std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), std::string(status.message()).c_str());
  return kWrongUsage;
}

// For a program whose words need no further sense.
inline int ReadCommandLine(CLI::App& app, int argc, char** argv) {
  return ReadCommandLine(app, argc, argv, [] { return absl::OkStatus(); });
}

// For a launcher, whose own options end at the first "--" or the first word that is none; what
// follows is the program that it starts, and that program's own. `command` may stay empty.
inline int ReadLauncherLine(CLI::App& app, int argc, char** argv,
                            std::vector<std::string>& command) {
  std::atexit(EndWithLostOutput);
  DeclareVersion(app);
  app.prefix_command();
  std::vector<std::string> words(argv + 1, argv + argc);
  auto dashes = std::find(words.begin(), words.end(), "--");
  std::vector<std::string> own(words.begin(), dashes);
  std::reverse(own.begin(), own.end());  // as CLI11 wants them
  try {
    app.parse(own);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongUsage;
  }
  command = app.remaining();
  if (dashes != words.end()) {
    if (command.empty()) ++dashes;
    command.insert(command.end(), dashes, words.end());
  }
  const bool is_option = !app.remaining().empty() && absl::StartsWith(command[0], "-");
  if (!is_option) return kGoOn;
  std::fprintf(stderr, "%s: unknown option %s; see %s --help\n", app.get_name().c_str(),
               command[0].c_str(), app.get_name().c_str());
  return kWrongUsage;
}

}  // namespace weft

#endif  // WEFT_TOOLS_COMMAND_LINE_H_
