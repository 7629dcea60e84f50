#include "tools/ckpt/convert.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/read_file.h"
#include "base/status.h"
#include "tools/ckpt/new_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/data/dataset_info.h"
#include "trainer/data/tokenizer.h"
#include "trainer/files/file.h"
#include "trainer/huggingface/model_reader.h"
#include "trainer/huggingface/model_writer.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/parameters.h"
#include "trainer/resume_identity.h"

namespace weft::ckpt {
namespace {

using train::BufferLayout;
using train::CheckpointReader;
using train::DType;
using train::Manifest;
using train::ModelConfig;
using train::ParameterSpec;
using train::TrainConfig;

std::string BufferOf(const std::string& parameter) {
  return absl::StrCat(train::kParameterPrefix, parameter);
}

absl::Status CheckParameters(const Manifest& manifest, const std::vector<ParameterSpec>& specs) {
  for (const ParameterSpec& spec : specs) {
    const BufferLayout* buffer = manifest.Find(BufferOf(spec.name));
    if (buffer == nullptr) {
      return absl::DataLossError(absl::StrCat("it has no buffer ", BufferOf(spec.name)));
    }
    if (buffer->dtype != DType::kF32 || buffer->shape != spec.whole_shape) {
      return absl::DataLossError(
          absl::StrCat("its buffer ", buffer->name, " is ", train::NameOf(buffer->dtype), " [",
                       absl::StrJoin(buffer->shape, ", "), "], and not F32 [",
                       absl::StrJoin(spec.whole_shape, ", "), "], as its own config has it"));
    }
  }
  return absl::OkStatus();
}

template <typename Narrow>
void NarrowInto(absl::Span<const float> values, std::vector<std::byte>& bytes) {
  bytes.resize(values.size() * sizeof(Narrow));
  for (size_t i = 0; i < values.size(); ++i) {
    Narrow narrow;
    train::kernels::Store(values[i], narrow);
    std::memcpy(bytes.data() + i * sizeof(Narrow), &narrow, sizeof(Narrow));
  }
}

void NarrowTo(DType dtype, absl::Span<const float> values, std::vector<std::byte>& bytes) {
  if (dtype == DType::kBF16) {
    NarrowInto<train::kernels::Bf16>(values, bytes);
  } else if (dtype == DType::kF16) {
    NarrowInto<train::kernels::Fp16>(values, bytes);
  } else {
    NarrowInto<float>(values, bytes);
  }
}

// A number that float16 would make infinite; bfloat16 has the range of float32.
absl::Status CheckRange(DType dtype, absl::Span<const float> values) {
  constexpr float kRoundedUp = 65520;  // the least that is not rounded to 65,504, the largest
  if (dtype != DType::kF16) return absl::OkStatus();
  const auto large = std::find_if(values.begin(), values.end(), [](float value) {
    return std::isfinite(value) && std::abs(value) >= kRoundedUp;
  });
  if (large == values.end()) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat("element ", large - values.begin(), " is ", *large,
                   ", beyond float16, which ends at 65504; --dtype bfloat16 and float32 hold it"));
}

// The SentencePiece model of the run's data, unless another is named.
absl::StatusOr<std::string> FindTokenizer(const ToHuggingFace& options, const TrainConfig& config) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const auto infos = train::ReadDatasetInfos(config.data.prefixes);
  if (infos.ok()) return infos->front().tokenizer;
  return Annotate(infos.status(), "the run's data has the tokenizer; name another by --tokenizer");
}

// The tokens of a model mean something in its own tokenizer alone.
absl::Status CheckTokenizer(const std::string& source, const train::DatasetInfo& info) {
  const std::string path = source + "/tokenizer.model";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::string theirs, ReadFile(path));
  WEFT_ASSIGN_OR_RETURN(const std::string ours, ReadFile(info.tokenizer));
  if (theirs == ours) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is another tokenizer than the data's, ", info.tokenizer,
      "; prepare the data with weft-data prepare --tokenizer ", path, ", and name that data"));
}

}  // namespace

absl::StatusOr<TrainConfig> ConfigOf(const Manifest& manifest) {
  const auto identity = manifest.states.find(train::kIdentityState);
  if (identity == manifest.states.end()) {
    return absl::FailedPreconditionError("it is no checkpoint of weft-train: no state 'identity'");
  }
  WEFT_ASSIGN_OR_RETURN(TrainConfig config, train::LoadIdentity(identity->second));
  const BufferLayout* tokens = manifest.Find(BufferOf("embedding.token"));
  if (tokens == nullptr || tokens->shape.empty()) {
    return absl::DataLossError(absl::StrCat("it has no buffer ", BufferOf("embedding.token")));
  }
  config.model.vocabulary = tokens->shape[0];
  return config;
}

absl::Status WriteRun(const TrainConfig& config, const ModelRun& model, const std::string& run) {
  std::vector<train::BufferPart> parts;
  for (const auto& [prefix, parameters] : model.buffers) {
    for (const train::ReadParameter& parameter : parameters) {
      train::BufferPart& part = parts.emplace_back();
      part.name = absl::StrCat(prefix, parameter.name);
      part.elements = static_cast<int64_t>(parameter.values.size());
      part.shape = parameter.shape;
      part.bytes = {reinterpret_cast<const std::byte*>(parameter.values.data()),
                    parameter.values.size() * sizeof(float)};
    }
  }
  train::CheckpointWriter writer(run + "/checkpoints", model.step, /*world_size=*/1);
  WEFT_RETURN_IF_ERROR(writer.WriteShard(0, parts));
  WEFT_RETURN_IF_ERROR(writer
                           .Commit({.samples_consumed = model.step * config.global_batch,
                                    .seed = config.seed,
                                    .states = {{train::kIdentityState, ResumeIdentity(config)},
                                               {train::kOptimizerState, model.optimizer}},
                                    .config_text = config.text})
                           .status());
  return train::WriteFileAtomically(run + "/config.toml", config.text);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> OpenWithShapes(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(path));
  if (reader->manifest().HasShapes()) return reader;
  return absl::FailedPreconditionError(absl::StrCat(
      path, " has a manifest of version ", reader->manifest().version,
      ", which holds no shapes; resume its run with this weft-train, which then saves version ",
      train::kCheckpointVersion));
}

absl::StatusOr<Converted> Convert(const ToHuggingFace& options) {
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                        OpenWithShapes(options.checkpoint));
  const absl::StatusOr<TrainConfig> config = ConfigOf(reader->manifest());
  if (!config.ok()) return Annotate(config.status(), options.checkpoint);
  const std::vector<ParameterSpec> specs = train::GptParameters(config->model);
  if (absl::Status status = CheckParameters(reader->manifest(), specs); !status.ok()) {
    return Annotate(status, options.checkpoint);
  }
  WEFT_ASSIGN_OR_RETURN(const std::string path, FindTokenizer(options, *config));
  WEFT_ASSIGN_OR_RETURN(const train::Tokenizer tokenizer, train::Tokenizer::Load(path));
  if (tokenizer.vocab_size() > config->model.vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", tokenizer.vocab_size(),
                                                   " tokens, the model of ", options.checkpoint,
                                                   " only ", config->model.vocabulary));
  }
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::Create(options.target));
  std::vector<float> values;
  std::vector<std::byte> bytes;
  auto parameter = [&](const std::string& name) -> absl::StatusOr<absl::Span<const std::byte>> {
    const std::string buffer = BufferOf(name);
    const int64_t elements = reader->manifest().Find(buffer)->elements;
    values.resize(static_cast<size_t>(elements));
    WEFT_RETURN_IF_ERROR(
        reader->Read(buffer, 0, elements,
                     {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)}));
    WEFT_RETURN_IF_ERROR(Annotate(CheckRange(options.dtype, values),
                                  absl::StrCat(options.checkpoint, ": buffer ", buffer)));
    NarrowTo(options.dtype, values, bytes);
    return absl::MakeConstSpan(bytes);
  };
  WEFT_RETURN_IF_ERROR(train::WriteModel({config->model, options.dtype, tokenizer.eod_id(), path},
                                         parameter, folder->path()));
  WEFT_RETURN_IF_ERROR(folder->Commit());
  return Converted{static_cast<int64_t>(specs.size()), train::ElementCount(specs)};
}

absl::StatusOr<Converted> Convert(const FromHuggingFace& options) {
  TrainConfig config = options.config;
  const auto infos = train::ReadDatasetInfos(config.data.prefixes);
  if (!infos.ok()) return Annotate(infos.status(), "the run's data (data.prefix)");
  config.model.vocabulary = infos->front().vocab_size;
  WEFT_RETURN_IF_ERROR(CheckTokenizer(options.source, infos->front()));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<NewFolder> folder, NewFolder::Create(options.target));
  WEFT_ASSIGN_OR_RETURN(std::vector<train::ReadParameter> model,
                        train::ReadModel(options.source, config.model));
  Converted converted;
  for (const train::ReadParameter& parameter : model) {
    ++converted.tensors;
    converted.elements += static_cast<int64_t>(parameter.values.size());
  }
  const ModelRun run{{{train::kParameterPrefix, std::move(model)}}, train::kNoOptimizer};
  WEFT_RETURN_IF_ERROR(WriteRun(config, run, folder->path()));
  WEFT_RETURN_IF_ERROR(folder->Commit());
  return converted;
}

}  // namespace weft::ckpt
