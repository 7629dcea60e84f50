#include "trainer/generate/trained_model.h"

#include <ATen/Parallel.h>

#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/retention.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/data/dataset_info.h"
#include "trainer/model/parameters.h"
#include "trainer/resume_identity.h"

namespace weft::train {
namespace {

namespace fs = std::filesystem;

bool IsThere(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::StatusOr<TrainConfig> ConfigOf(const Manifest& manifest, const std::string& path) {
  const auto identity = manifest.states.find(kIdentityState);
  if (identity == manifest.states.end()) {
    return absl::DataLossError(absl::StrCat(path, " is no checkpoint of weft-train"));
  }
  absl::StatusOr<TrainConfig> config = LoadIdentity(identity->second);
  if (!config.ok()) return Annotate(config.status(), absl::StrCat("the model of ", path));
  const BufferLayout* table = manifest.Find("parameters.embedding.token");
  if (table == nullptr || table->elements % config->model.hidden != 0) {
    return absl::DataLossError(absl::StrCat(path, " has no table of tokens of width ",
                                            config->model.hidden, " (model.hidden)"));
  }
  config->model.vocabulary = table->elements / config->model.hidden;
  return config;
}

// The folder of a checkpoint that `path` stands for.
absl::Status FindCheckpoint(const std::string& path, TrainedModel& found) {
  if (IsThere(fs::path(path) / kManifestName)) {
    found.checkpoint = path;
    return absl::OkStatus();
  }
  if (!IsThere(path)) return absl::NotFoundError(absl::StrCat("there is no ", path));
  const fs::path within = fs::path(path) / "checkpoints";
  const std::string folder = IsThere(within) ? within.string() : path;
  WEFT_ASSIGN_OR_RETURN(const LatestCheckpoint latest,
                        FindLatest(folder, Verification::kWhenTouched));
  for (const PassedOver& entry : latest.passed_over) {
    found.passed_over.push_back(absl::StrCat(entry.path, ": ", entry.reason.message()));
  }
  found.checkpoint = latest.path;
  if (!latest.path.empty()) return absl::OkStatus();
  std::string reasons;
  for (const std::string& reason : found.passed_over) absl::StrAppend(&reasons, "\n  ", reason);
  return absl::NotFoundError(absl::StrCat(path, " is no checkpoint (it has no ", kManifestName,
                                          "), and there is no whole checkpoint in ", folder,
                                          reasons));
}

absl::StatusOr<std::string> FindTokenizer(const std::string& checkpoint, const DataBlend& data) {
  std::error_code error;
  const fs::path run = fs::weakly_canonical(checkpoint, error).parent_path().parent_path();
  const fs::path exported = run / "model" / "tokenizer.model";
  if (IsThere(exported)) return exported.string();
  const absl::StatusOr<std::vector<DatasetInfo>> infos = ReadDatasetInfos(data.prefixes);
  if (infos.ok() && IsThere(infos->front().tokenizer)) return infos->front().tokenizer;
  return absl::NotFoundError(absl::StrCat(
      "there is no tokenizer: neither ", exported.string(),
      ", which a finished run leaves, nor that of the dataset ", absl::StrJoin(data.prefixes, ", "),
      " (", infos.ok() ? absl::StrCat("no ", infos->front().tokenizer) : infos.status().message(),
      "); name its file with --tokenizer"));
}

}  // namespace

absl::StatusOr<std::vector<at::Tensor>> LoadModel(const std::string& path,
                                                  const ModelConfig& config, Precision precision) {
  WEFT_ASSIGN_OR_RETURN(auto reader, CheckpointReader::Open(path));
  std::vector<at::Tensor> tensors;
  for (const ParameterSpec& spec : GptParameters(config)) {
    at::Tensor values = at::empty(spec.shape, at::kFloat);
    WEFT_RETURN_IF_ERROR(reader->Read(absl::StrCat(kParameterPrefix, spec.name), 0, spec.elements(),
                                      {reinterpret_cast<std::byte*>(values.data_ptr<float>()),
                                       static_cast<size_t>(spec.elements()) * sizeof(float)}));
    tensors.push_back(values.to(TypeOf(precision)));
  }
  return tensors;
}

absl::StatusOr<TrainedModel> LoadTrainedModel(const std::string& path,
                                              const TrainedModelOptions& options) {
  TrainedModel result;
  WEFT_RETURN_IF_ERROR(FindCheckpoint(path, result));
  std::string tokenizer = options.tokenizer;
  TrainConfig config;
  {
    WEFT_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(result.checkpoint));
    WEFT_ASSIGN_OR_RETURN(config, ConfigOf(reader->manifest(), result.checkpoint));
    result.step = reader->manifest().step;
  }
  if (tokenizer.empty()) {
    WEFT_ASSIGN_OR_RETURN(tokenizer, FindTokenizer(result.checkpoint, config.data));
  }
  WEFT_ASSIGN_OR_RETURN(Tokenizer loaded, Tokenizer::Load(tokenizer));
  if (loaded.vocab_size() > config.model.vocabulary) {
    return absl::FailedPreconditionError(
        absl::StrCat(tokenizer, " has ", loaded.vocab_size(), " tokens, the model of ",
                     result.checkpoint, " ", config.model.vocabulary, ": it is another's"));
  }
  result.tokenizer = std::make_unique<Tokenizer>(std::move(loaded));
  if (options.threads > 0) at::set_num_threads(options.threads);
  result.threads = at::get_num_threads();
  result.precision = options.precision.value_or(config.precision);
  WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> tensors,
                        LoadModel(result.checkpoint, config.model, result.precision));
  result.model = std::make_unique<Gpt>(config.model, std::move(tensors));
  return result;
}

}  // namespace weft::train
