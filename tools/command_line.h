// The end of every program's reading of its command line: parse, make sense of the words, say what
// was wrong.
#ifndef WEFT_TOOLS_COMMAND_LINE_H_
#define WEFT_TOOLS_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/status/status.h"

namespace weft {

inline constexpr int kGoOn = -1, kWrongUsage = 2;

// The exit status: 0 after --help and the like; kWrongUsage after a line on standard error, that
// of CLI11 or the name of `app` and what `resolve`, an absl::Status(), returns; or kGoOn.
template <typename Resolve>
int ReadCommandLine(CLI::App& app, int argc, char** argv, const Resolve& resolve) {
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

}  // namespace weft

#endif  // WEFT_TOOLS_COMMAND_LINE_H_
