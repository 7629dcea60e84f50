// What sub-commands of weft-init, and of the benchmark beside it, have in common: their options,
// progress on a terminal, and where results go.
#ifndef WEFT_TOOLS_INIT_COMMAND_H_
#define WEFT_TOOLS_INIT_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/init/measure.h"
#include "tools/init/options.h"

namespace weft::init {

// A sub-command, which is required of the program: `run` is called when it is the one that was
// given. `options` outlives `app`.
using Run = std::function<absl::StatusOr<nlohmann::ordered_json>()>;

// The program: one sub-command, with --timeout and --json for all of them. `json`: RunAndWrite.
void SetUpProgram(CLI::App& app, const std::string& footer, Options& options, std::string& json);
// --layout, --ranks, --hosts.
void AddLayout(CLI::App& command, Options& options);
// How the layout's ranks come to their groups: --relay, --records, --workers and so on.
void AddPhases(CLI::App& command, Options& options);
// --connections, --depths, --op-time.
void AddOperations(CLI::App& command, Options& options);
// A duration such as 500ms, with a check that it is above 0.
void AddDuration(CLI::App& command, const std::string& name, absl::Duration* value,
                 const std::string& help);

// With a line on standard error that says how far it is, on a terminal.
absl::StatusOr<Measurement> MeasureWithProgress(Options options);
// Prints the table, too. `model`: smaller sizes as well, and what they predict.
absl::StatusOr<nlohmann::ordered_json> RunPhases(const Options& options, bool model);
absl::StatusOr<nlohmann::ordered_json> RunOperations(const Options& options);

// Writes the object to `json`; empty: nowhere; "-": standard output, where the tables of `run` then
// do not go. The program's exit status: 0, 1, 2 for kInvalidArgument, `unavailable` for
// kUnavailable; with the error on standard error.
int RunAndWrite(const std::string& program, const Run& run, const std::string& json,
                int unavailable);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_COMMAND_H_
