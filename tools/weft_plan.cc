// weft-plan: where a job's ranks should run, which source ports its flows should use, which
// algorithms its collectives take, and what that gives. Each subcommand is a file of tools/plan/.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "tools/command_line.h"
#include "tools/plan/collective_command.h"
#include "tools/plan/order_command.h"
#include "tools/plan/paths_command.h"
#include "tools/plan/predict_command.h"
#include "tools/plan/verify_command.h"

namespace weft::plan {
namespace {

constexpr const char* kFooter =
    "docs/planning.md says what a job's description holds and how costs are predicted.\n"
    "Exit status: 0 when all was done, 1 when something failed, 2 for wrong usage.";

int Main(int argc, char** argv) {
  CLI::App app(
      "weft-plan: rank orders, paths and collectives of training jobs, predicted and compared",
      "weft-plan");
  app.footer(kFooter);
  OrderCommand order(app);
  PathsCommand paths(app);
  PredictCommand predict(app);
  CompareCommand compare(app);
  CollectiveCommand collective(app);
  VerifyCommand verify(app);
  app.require_subcommand(1);
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  int exit_status = EXIT_SUCCESS;
  absl::Status status = verify.chosen()       ? verify.Run(exit_status)
                        : order.chosen()      ? order.Run()
                        : paths.chosen()      ? paths.Run()
                        : predict.chosen()    ? predict.Run()
                        : collective.chosen() ? collective.Run()
                                              : compare.Run();
  if (status.ok()) return exit_status;
  absl::FPrintF(stderr, "weft-plan: %s\n", status.message());
  return status.code() == absl::StatusCode::kInvalidArgument ? kWrongUsage : EXIT_FAILURE;
}

}  // namespace
}  // namespace weft::plan

int main(int argc, char** argv) { return weft::plan::Main(argc, argv); }
