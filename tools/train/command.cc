#include "tools/train/command.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "base/status.h"
#include "tools/command_line.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::train {

absl::StatusOr<TrainConfig> Command::Config() const {
  struct Short {
    const char *option, *key;
    const std::string* value;
  };
  Settings known(TrainSettings());
  std::vector<std::string> pairs;
  for (const auto& [option, key, value] :
       {Short{"--tp", "parallel.tensor", &tensor}, Short{"--cp", "parallel.context", &context},
        Short{"--ep", "parallel.expert", &expert}, Short{"--pp", "parallel.pipeline", &pipeline},
        Short{"--zero", "parallel.zero", &zero},
        Short{"--schedule", "parallel.schedule", &schedule}}) {
    if (value->empty()) continue;
    WEFT_RETURN_IF_ERROR(known.Set(key, *value, option));  // an error names the option
    pairs.push_back(absl::StrCat(key, "=", *value));
  }
  pairs.insert(pairs.end(), overrides.begin(), overrides.end());
  absl::StatusOr<TrainConfig> config = LoadTrainConfig(config_path, pairs, preset);
  if (!config.ok()) return absl::InvalidArgumentError(config.status().message());
  return config;
}

bool Command::TakesMadeUpText() const {
  const bool is_given =
      std::any_of(overrides.begin(), overrides.end(), [](const std::string& pair) {
        return absl::StripAsciiWhitespace(pair.substr(0, pair.find('='))) == "data.prefix";
      });
  if (preset.empty() || is_given) return false;
  if (config_path.empty()) return true;
  const absl::StatusOr<TrainConfig> of_file = LoadTrainConfig(config_path, {});
  return of_file.ok() && of_file->data.prefixes.empty();
}

int GivenThreads(const TrainConfig& config) {
  if (config.threads > 0) return config.threads;
  int threads = 0;
  const char* openmp = std::getenv("OMP_NUM_THREADS");
  return openmp != nullptr && absl::SimpleAtoi(openmp, &threads) ? std::max(threads, 0) : 0;
}

void AddOptions(CLI::App& app, Command& command) {
  app.add_option("config", command.config_path, "TOML file; docs/training-keys.md lists its keys")
      ->check(CLI::ExistingFile);
  app.add_option("--run-dir", command.run_dir, "folder for everything that the run writes")
      ->default_val("runs/train");
  app.add_flag("--resume", command.resume,
               "go on from the last whole checkpoint of the run folder, if there is one");
  std::string presets = "built-in config, instead of a file or below it:";
  for (const Preset& preset : Presets()) {
    absl::StrAppend(&presets, "\n", preset.name, ": ", preset.sentence);
  }
  app.add_option("--preset", command.preset, presets);
  app.add_option("--tp", command.tensor,
                 "ranks that share each layer (parallel.tensor), with sequence parallelism");
  app.add_option("--cp", command.context,
                 "ranks that share each sample (parallel.context); how: parallel.context_method");
  app.add_option("--ep", command.expert,
                 "data-parallel ranks that share the experts of a layer (parallel.expert)");
  app.add_option("--pp", command.pipeline, "stages of the pipeline (parallel.pipeline)");
  app.add_option("--schedule", command.schedule,
                 absl::StrCat("order of the passes of the pipeline (parallel.schedule): ",
                              topology::kPipelineScheduleNames));
  app.add_option("--zero", command.zero,
                 "stage of ZeRO over the data-parallel ranks (parallel.zero)");
  app.add_flag("--replay", command.replays,
               "compute one step again, from the run folder's newest checkpoint, without changing "
               "the run, and print a digest of the result: \"replay: DIGEST\" (weft-driver "
               "--replay-hosts)");
  app.add_option(
         "--measure-kernels", command.measure_kernels,
         "measure anew, for up to this many seconds at the start, which library is fastest at "
         "each product and at attention, and keep the result for later runs on this machine, "
         "which should be idle")
      ->check(RealRange(0.1, 600));
  CLI::Option* const check = app.add_flag(
      "--check", command.check,
      "print what the layout means (ranks, micro-batches, bubble, memory) or why it is not "
      "possible, and exit without training");
  app.add_option("--ranks", command.ranks,
                 "with --check: ranks of the job; without --check, these are the ranks that the "
                 "launcher starts (weft-run -n)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(check);
  app.add_option("--ranks-per-host", command.ranks_per_host,
                 "with --check: ranks that share a host's memory (default: all of the job)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(check);
  app.add_option(
         "--vocabulary", command.vocabulary,
         "with --check: tokens of the vocabulary (default: those of the data or, where there is "
         "no data, of the model)")
      ->check(CLI::Range(1, 1 << 24))
      ->needs(check);
  app.add_option(
         "--gpu-memory", command.gpu_memory,
         "with --check and train.device=cuda: memory of a GPU, as 80GiB (default: that of this "
         "machine's first GPU, if there is one)")
      ->needs(check);
  app.add_option(
         "--svg", command.svg,
         "with --check: file for a picture of the pipeline's schedule, a row for each stage")
      ->needs(check);
  // Empty, they would be as if they were not there.
  for (const char* option : {"--run-dir", "--preset", "--tp", "--cp", "--ep", "--pp", "--schedule",
                             "--zero", "--gpu-memory", "--svg"}) {
    app.get_option(option)->check(CheckNotEmpty);
  }
  app.add_option("--set", command.overrides, "KEY=VALUE of the config, as train.steps=100")
      ->allow_extra_args(false);
  app.add_flag("--markdown", command.markdown, "print the reference of all keys and exit");
}

}  // namespace weft::train
