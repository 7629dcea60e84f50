#include "tools/ckpt/model_dcp.h"

#include <filesystem>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "tools/ckpt/dcp.h"
#include "tools/ckpt/new_folder.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/data/dataset_info.h"
#include "trainer/files/file.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/model_reader.h"
#include "trainer/huggingface/model_writer.h"
#include "trainer/huggingface/tensor_rows.h"
#include "trainer/loop/loss_scale.h"
#include "trainer/model/parameters.h"

namespace weft::ckpt {
namespace {

constexpr char kAdamW[] = "adamw";

// A folder of the exchange, of one tensor for each parameter, and our buffers' prefix.
struct Part {
  const char* folder;
  const char* prefix;
};
constexpr Part kParts[] = {{"model", train::kParameterPrefix},
                           {"exp_avg", "adam.mean."},
                           {"exp_avg_sq", "adam.variance."}};

// Updates that Adam's states have seen: steps that were left out are none.
absl::StatusOr<int64_t> AdamStep(const train::Manifest& manifest,
                                 const train::TrainConfig& config) {
  const auto text = manifest.states.find(train::kLossScaleState);
  // Empty: of a run that has made no step.
  if (text == manifest.states.end() || text->second.empty()) return manifest.step;
  train::LossScale scale(config);
  WEFT_RETURN_IF_ERROR(scale.FromText(text->second));
  return manifest.step - scale.left_out();
}

}  // namespace

absl::StatusOr<Converted> Convert(const ToModelDcp& options) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<train::CheckpointReader> reader,
                        OpenWithShapes(options.checkpoint));
  const train::Manifest& manifest = reader->manifest();
  const absl::StatusOr<train::TrainConfig> config = ConfigOf(manifest);
  if (!config.ok()) return Annotate(config.status(), options.checkpoint);
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::Create(options.target));
  const std::string exchange = folder->path() + "/exchange";
  WEFT_RETURN_IF_ERROR(CheckDcpPython(*folder, options.python));
  Converted converted;
  for (const Part& part : kParts) {
    const std::vector<train::ParameterSpec> specs = train::GptParameters(config->model);
    if (manifest.Find(absl::StrCat(part.prefix, specs[0].name)) == nullptr) continue;
    const std::string to = absl::StrCat(exchange, "/", part.folder);
    WEFT_RETURN_IF_ERROR(train::MakeFolders(to));
    std::vector<std::byte> bytes;
    auto parameter = [&](const std::string& name) -> absl::StatusOr<absl::Span<const std::byte>> {
      const std::string buffer = absl::StrCat(part.prefix, name);
      const train::BufferLayout* layout = manifest.Find(buffer);
      if (layout == nullptr || layout->dtype != train::DType::kF32) {
        return absl::FailedPreconditionError(
            absl::StrCat(options.checkpoint, " has no buffer '", buffer, "' of F32"));
      }
      bytes.resize(static_cast<size_t>(layout->elements) * sizeof(float));
      WEFT_RETURN_IF_ERROR(reader->Read(buffer, 0, layout->elements, absl::MakeSpan(bytes)));
      ++converted.tensors;
      converted.elements += layout->elements;
      return absl::MakeConstSpan(bytes);
    };
    WEFT_RETURN_IF_ERROR(train::WriteTensors({config->model, train::DType::kF32}, parameter,
                                             to + "/model.safetensors"));
  }
  const absl::StatusOr<int64_t> step = AdamStep(manifest, *config);
  if (!step.ok()) return Annotate(step.status(), options.checkpoint);
  WEFT_RETURN_IF_ERROR(RunDcpProgram(*folder, options.python,
                                     {"to-model", exchange, folder->path(), absl::StrCat(*step)}));
  WEFT_RETURN_IF_ERROR(train::RemoveTree(exchange));
  WEFT_RETURN_IF_ERROR(folder->Commit());
  return converted;
}

absl::StatusOr<Converted> Convert(const FromModelDcp& options, int64_t* step) {
  train::TrainConfig config = options.config;
  const auto infos = train::ReadDatasetInfos(config.data.prefixes);
  if (!infos.ok()) return Annotate(infos.status(), "the run's data (data.prefix)");
  config.model.vocabulary = infos->front().vocab_size;
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::Create(options.target));
  const std::string exchange = folder->path() + "/exchange";
  WEFT_RETURN_IF_ERROR(train::MakeFolders(exchange));
  WEFT_RETURN_IF_ERROR(RunDcpProgram(
      *folder, options.python,
      {"from-model", options.source, exchange, train::TensorRows(config.model)[0].theirs}));
  const bool wants_states = config.optimizer.name == train::OptimizerKind::kAdamW;
  ModelRun run;
  run.optimizer = train::kNoOptimizer;
  Converted converted;
  for (const Part& part : kParts) {
    const std::string from = absl::StrCat(exchange, "/", part.folder);
    const bool is_state = part.prefix != absl::string_view(train::kParameterPrefix);
    std::error_code error;
    if (is_state && (!wants_states || !std::filesystem::exists(from, error))) continue;
    WEFT_RETURN_IF_ERROR(train::WriteFileAtomically(
        from + "/config.json", train::ModelJson(config.model, train::DType::kF32, /*eod_id=*/0)));
    absl::StatusOr<std::vector<train::ReadParameter>> parameters =
        train::ReadModel(from, config.model);
    if (!parameters.ok()) {
      return Annotate(parameters.status(), absl::StrCat(options.source, ", ", part.folder));
    }
    for (const train::ReadParameter& parameter : *parameters) {
      ++converted.tensors;
      converted.elements += static_cast<int64_t>(parameter.values.size());
    }
    run.buffers.emplace_back(part.prefix, *std::move(parameters));
    if (is_state) run.optimizer = kAdamW;
  }
  if (run.optimizer == kAdamW) {
    WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(exchange + "/step"));
    const int64_t step_max = std::numeric_limits<int64_t>::max() / config.global_batch;
    if (!absl::SimpleAtoi(text, &run.step) || run.step < 0 || run.step > step_max) {
      return absl::InvalidArgumentError(absl::StrCat(
          options.source, ": the step of Adam's states is '", text, "', and not 0 to ", step_max));
    }
  }
  WEFT_RETURN_IF_ERROR(train::RemoveTree(exchange));
  WEFT_RETURN_IF_ERROR(WriteRun(config, run, folder->path()));
  WEFT_RETURN_IF_ERROR(folder->Commit());
  *step = run.step;
  return converted;
}

}  // namespace weft::ckpt
