// weft-ckpt: looks into checkpoints of weft-train, compares, copies and converts them.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/status.h"
#include "tools/ckpt/convert.h"
#include "tools/ckpt/dcp.h"
#include "tools/ckpt/diff.h"
#include "tools/ckpt/model_dcp.h"
#include "tools/ckpt/report.h"
#include "tools/ckpt/verify.h"
#include "tools/command_line.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config.h"

namespace weft::ckpt {
namespace {

constexpr char kHuggingFace[] = "huggingface", kDcp[] = "dcp", kOurNames[] = "weft";

// A run's folder of checkpoints: "runs/demo" and "runs/demo/checkpoints" mean the same.
std::string CheckpointsOf(const std::string& run) {
  const std::string below = absl::StrCat(run, "/checkpoints");
  std::error_code ignored;
  return std::filesystem::is_directory(below, ignored) ? below : run;
}

// Who names a run where a checkpoint is meant is told which checkpoints there are.
absl::Status CheckIsCheckpoint(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(absl::StrCat(path, "/", train::kManifestName), ignored)) {
    return absl::OkStatus();
  }
  const auto paths = train::ListCheckpoints(CheckpointsOf(path));
  if (!paths.ok() || paths->empty()) return absl::OkStatus();  // reading says what is wrong
  return absl::InvalidArgumentError(absl::StrCat(
      path, " holds ", paths->size(), " checkpoints; name one of them, as ", paths->front()));
}

struct ListCommand {
  std::string run;
  bool quick = false;
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("run", run, "a run's folder, or its folder of checkpoints")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_flag("--quick", quick, "look at sizes alone, instead of reading every byte");
    app.add_flag("--json", json, "one JSON object");
  }

  absl::StatusOr<bool> Run() const {
    Listing listing;
    listing.folder = CheckpointsOf(run);
    listing.read_all = !quick;
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                          train::ListCheckpoints(listing.folder));
    bool all_whole = true;
    for (const std::string& path : paths) {
      Listed& listed = listing.checkpoints.emplace_back();
      listed.path = path;
      absl::StatusOr<Verification> verified = Verify(path, listing.read_all);
      if (verified.ok()) {
        listed.verification = *std::move(verified);
      } else {
        listed.status = verified.status();
      }
      all_whole = all_whole && listed.whole();
    }
    WEFT_ASSIGN_OR_RETURN(listing.unfinished, train::ListUnfinished(listing.folder));
    if (paths.empty() && !json) {
      absl::FPrintF(stderr, "weft-ckpt: %s holds no checkpoint\n", listing.folder);
    }
    Print(listing, json);
    return all_whole;
  }
};

struct VerifyCommand {
  std::string checkpoint;
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("checkpoint", checkpoint, "as runs/demo/checkpoints/step-00001000")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_flag("--json", json, "one JSON object");
  }

  absl::StatusOr<bool> Run() const {
    WEFT_RETURN_IF_ERROR(CheckIsCheckpoint(checkpoint));
    WEFT_ASSIGN_OR_RETURN(const Verification verification, Verify(checkpoint));
    Print(checkpoint, verification, json);
    return verification.whole();
  }
};

struct DiffCommand {
  std::string first, second;
  bool all = false;
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("first", first, "a checkpoint")->required()->check(CLI::ExistingDirectory);
    app.add_option("second", second, "another, of any layout")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_flag("--all", all, "name equal tensors, too");
    app.add_flag("--json", json, "one JSON object");
  }

  absl::StatusOr<bool> Run() const {
    WEFT_RETURN_IF_ERROR(CheckIsCheckpoint(first));
    WEFT_RETURN_IF_ERROR(CheckIsCheckpoint(second));
    WEFT_ASSIGN_OR_RETURN(const auto a, train::CheckpointReader::Open(first));
    WEFT_ASSIGN_OR_RETURN(const auto b, train::CheckpointReader::Open(second));
    WEFT_ASSIGN_OR_RETURN(const std::vector<TensorDifference> differences, Diff(*a, *b));
    Print(differences, all, json);
    return AllEqual(differences);
  }
};

// What the mirror of a run does by itself (checkpoint.remote_folder), by hand: for a run that had
// none, or to bring a checkpoint back.
struct CopyCommand {
  std::string checkpoint, folder;
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("checkpoint", checkpoint, "as runs/demo/checkpoints/step-00001000")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_option("folder", folder,
                   "a folder of checkpoints, made where it is missing; one of the same step there "
                   "is replaced")
        ->required()
        ->check(CheckNotEmpty);
    app.add_flag("--json", json, "one JSON object");
  }

  absl::StatusOr<bool> Run() const {
    WEFT_RETURN_IF_ERROR(CheckIsCheckpoint(checkpoint));
    WEFT_ASSIGN_OR_RETURN(const auto reader, train::CheckpointReader::Open(checkpoint));
    const std::string copy =
        absl::StrCat(folder, "/", train::CheckpointName(reader->manifest().step));
    WEFT_RETURN_IF_ERROR(train::CopyCheckpoint(checkpoint, folder));
    if (json) {
      const nlohmann::ordered_json row = {{"source", checkpoint}, {"copy", copy}};
      absl::PrintF("%s\n", JsonText(row));
    } else {
      absl::PrintF("%s: whole, each shard held against its checksum\n", copy);
    }
    return true;
  }
};

struct ConvertCommand {
  std::string source, target;
  std::string to, from;
  std::string dtype = "float32";
  std::string names = kOurNames;
  std::string tokenizer;
  std::string python = "python3";
  const CLI::Option* python_option = nullptr;
  std::string config_path, preset;
  std::vector<std::string> overrides;
  bool json = false;

  void Register(CLI::App& app) {
    app.add_option("source", source, "a checkpoint, or with --from a folder of that format")
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_option("target", target,
                   "a folder that is not there yet, or empty; with --from of a new run")
        ->required()
        ->check(CheckNotEmpty);
    const auto formats = CLI::IsMember({kHuggingFace, kDcp});
    auto* to_option = app.add_option("--to", to,
                                     "format to write: huggingface (parameters alone), dcp "
                                     "(torch.distributed.checkpoint)")
                          ->check(formats);
    app.add_option("--names", names,
                   "with --to dcp: weft, our own, for weft-ckpt --from dcp; huggingface, those of "
                   "programs in PyTorch, as {\"model\", \"optim\"} of get_state_dict")
        ->check(CLI::IsMember({kOurNames, kHuggingFace}))
        ->capture_default_str();
    app.add_option("--from", from,
                   "format to read: huggingface; dcp (what --to dcp wrote or, with a config, a "
                   "program in PyTorch under the names of a Hugging Face model)")
        ->check(formats)
        ->excludes(to_option);
    app.add_option("--dtype", dtype,
                   "with --to huggingface: float32 loses nothing; bfloat16, float16 round")
        ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
        ->capture_default_str();
    app.add_option("--tokenizer", tokenizer,
                   "with --to huggingface: SentencePiece model (default: that of the run's data)")
        ->check(CLI::ExistingFile);
    app.add_option("--config", config_path, "with --from: config of the run, as of weft-train")
        ->check(CLI::ExistingFile);
    app.add_option("--preset", preset, "with --from: preset of weft-train, below the config");
    app.add_option("--set", overrides, "with --from: KEY=VALUE of the config")
        ->allow_extra_args(false)
        ->take_all();
    python_option = app.add_option("--python", python, "with dcp: a Python that has PyTorch")
                        ->capture_default_str();
    app.add_flag("--json", json, "one JSON object");
  }

  // kInvalidArgument: words that do not fit each other.
  absl::Status Resolve() {
    if (to.empty() == from.empty()) {
      return absl::InvalidArgumentError("convert needs --to FORMAT or --from FORMAT");
    }
    const bool configured = !config_path.empty() || !preset.empty() || !overrides.empty();
    if (from.empty() && configured) {
      return absl::InvalidArgumentError(
          "--config, --preset and --set belong to --from: a checkpoint knows its own config");
    }
    if (to != kDcp && names != kOurNames) {
      return absl::InvalidArgumentError("--names belongs to --to dcp");
    }
    if (to != kDcp && from != kDcp && python_option->count() > 0) {
      return absl::InvalidArgumentError("--python belongs to --to dcp and --from dcp");
    }
    from_model = from == kDcp && configured;
    if (to != kHuggingFace && (!tokenizer.empty() || dtype != "float32")) {
      return absl::InvalidArgumentError("--tokenizer and --dtype belong to --to huggingface");
    }
    if (from == kHuggingFace || from_model) {
      absl::StatusOr<train::TrainConfig> loaded =
          train::LoadTrainConfig(config_path, overrides, preset);
      if (!loaded.ok()) return absl::InvalidArgumentError(loaded.status().message());
      config = *std::move(loaded);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Run() const {
    absl::StatusOr<Converted> converted;
    if (!to.empty()) WEFT_RETURN_IF_ERROR(CheckIsCheckpoint(source));
    int64_t step = 0;
    if (to == kDcp && names == kHuggingFace) {
      converted = Convert(ToModelDcp{{source, target, python}});
    } else if (to == kDcp) {
      converted = Convert(ToDcp{source, target, python});
    } else if (from_model) {
      converted = Convert(FromModelDcp{{source, target, python}, config}, &step);
    } else if (from == kDcp) {
      converted = Convert(FromDcp{source, target, python});
    } else if (to == kHuggingFace) {
      const train::DType type = dtype == "float32"   ? train::DType::kF32
                                : dtype == "float16" ? train::DType::kF16
                                                     : train::DType::kBF16;
      converted = Convert(ToHuggingFace{source, target, type, tokenizer});
    } else {
      converted = Convert(FromHuggingFace{source, target, config});
    }
    if (!converted.ok()) return converted.status();
    if (json) {
      const nlohmann::ordered_json row = {{"source", source},
                                          {"target", target},
                                          {"tensors", converted->tensors},
                                          {"elements", converted->elements}};
      absl::PrintF("%s\n", JsonText(row));
      return true;
    }
    absl::PrintF("%s: %d tensors, %d elements\n", target, converted->tensors, converted->elements);
    if (from == kHuggingFace || from_model) {
      absl::PrintF("%s. Go on with\n  weft-train %s/config.toml --run-dir %s --resume\n",
                   step > 0 ? absl::StrCat("The optimizer's states are those of step ", step)
                            : "The optimizer's states begin at zero, the step at 0",
                   target, target);
    }
    return true;
  }

  train::TrainConfig config;  // after Resolve, with --from
  bool from_model = false;    // after Resolve: of dcp, with a config
};

int Main(int argc, char** argv) {
  CLI::App app(
      "Looks into checkpoints of weft-train, compares, copies and converts them.\n"
      "  weft-ckpt list runs/demo\n"
      "  weft-ckpt convert runs/demo/checkpoints/step-00001000 --to huggingface models/demo\n"
      "Exit status 0: done, all is whole, or equal; 1: it failed, something is not whole, or "
      "differs;\n"
      "2: the command line or the config is wrong.",
      "weft-ckpt");
  app.require_subcommand(1);
  ListCommand list;
  VerifyCommand verify;
  DiffCommand diff;
  CopyCommand copy;
  ConvertCommand convert;
  CLI::App* list_app = app.add_subcommand("list", "a run's checkpoints, and whether each is whole");
  CLI::App* verify_app = app.add_subcommand("verify", "reads every byte of a checkpoint");
  CLI::App* diff_app = app.add_subcommand("diff", "two checkpoints, tensor by tensor");
  CLI::App* copy_app =
      app.add_subcommand("copy", "a whole checkpoint to another folder, checked on its way");
  CLI::App* convert_app = app.add_subcommand("convert", "to and from formats of other programs");
  list.Register(*list_app);
  verify.Register(*verify_app);
  diff.Register(*diff_app);
  copy.Register(*copy_app);
  convert.Register(*convert_app);
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&] {
    return convert_app->parsed() ? convert.Resolve() : absl::OkStatus();
  });
  if (status_of_usage != kGoOn) return status_of_usage;

  const absl::StatusOr<bool> good = list_app->parsed()     ? list.Run()
                                    : verify_app->parsed() ? verify.Run()
                                    : diff_app->parsed()   ? diff.Run()
                                    : copy_app->parsed()   ? copy.Run()
                                                           : convert.Run();
  if (good.ok()) return *good ? 0 : 1;
  absl::FPrintF(stderr, "weft-ckpt: %s\n", good.status().message());
  return 1;
}

}  // namespace
}  // namespace weft::ckpt

int main(int argc, char** argv) { return weft::ckpt::Main(argc, argv); }
