// The end of every program's reading of its command line: parse, make sense of the words, say what
// was wrong.
#ifndef WEFT_TOOLS_COMMAND_LINE_H_
#define WEFT_TOOLS_COMMAND_LINE_H_

#include <errno.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
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

}  // namespace weft

#endif  // WEFT_TOOLS_COMMAND_LINE_H_
