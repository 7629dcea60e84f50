// The command line of weft-train, and the config that it means.
#ifndef WEFT_TOOLS_TRAIN_COMMAND_H_
#define WEFT_TOOLS_TRAIN_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"

namespace weft::train {

struct Command {
  // Config: a built-in one, a file over it, then options.
  std::string preset;
  std::string config_path;
  // Short forms of keys, which come before --set; empty: not given.
  std::string tensor, context, expert, pipeline, zero, schedule;
  std::vector<std::string> overrides;  // "KEY=VALUE"

  std::string run_dir;
  bool resume = false;
  bool replays = false;        // --replay
  double measure_kernels = 0;  // seconds; 0: no new trial
  bool markdown = false;

  bool check = false;
  // With --check alone.
  int ranks = 0;           // 0: the launcher's, or as few as the layout needs
  int ranks_per_host = 0;  // 0: all of the job
  int vocabulary = 0;      // 0: the data's
  std::string gpu_memory;  // empty: this machine's
  std::string svg;         // where the pipeline's schedule is drawn; empty: nowhere

  // InvalidArgument names the option, or file and line.
  absl::StatusOr<TrainConfig> Config() const;
  // Whether the preset alone says where the data is: then made-up sentences serve where it is not.
  bool TakesMadeUpText() const;
};

// `command` outlives the parsing of `app`.
void AddOptions(CLI::App& app, Command& command);

// Compute threads of a rank by train.threads or else OMP_NUM_THREADS; 0: neither is given.
int GivenThreads(const TrainConfig& config);

}  // namespace weft::train

#endif  // WEFT_TOOLS_TRAIN_COMMAND_H_
