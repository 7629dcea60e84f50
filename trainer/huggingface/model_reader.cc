#include "trainer/huggingface/model_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/huggingface/tensor_rows.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

using Json = nlohmann::json;

template <typename T>
void Widen(absl::Span<const std::byte> bytes, std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = kernels::Load(value);
  }
}

absl::Span<const std::byte> BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)};
}
absl::Span<std::byte> BytesOf(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float)};
}

// All tensors of a model's files, by name.
class TensorFiles {
 public:
  absl::Status Open(const std::string& folder) {
    folder_ = folder;
    const std::string single = folder + "/model.safetensors";
    const std::string index = single + ".index.json";
    const absl::StatusOr<std::string> text = ReadFile(index);
    if (absl::IsNotFound(text.status())) return Add("model.safetensors");
    if (!text.ok()) return text.status();
    const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(index, " has no object 'weight_map'"));
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : json["weight_map"].items()) {
      const std::string name = file.is_string() ? file.get<std::string>() : "";
      if (name.empty() || name.find('/') != std::string::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat(index, ": tensor '", tensor, "' is in ", file.dump(), ", no file name"));
      }
      names.insert(name);
    }
    for (const std::string& name : names) WEFT_RETURN_IF_ERROR(Add(name));
    return absl::OkStatus();
  }

  const std::string& folder() const { return folder_; }
  bool Has(const std::string& name) const { return tensors_.count(name) > 0; }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, place] : tensors_) names.push_back(name);
    return names;
  }

  // The tensor in fp32, which must have that shape.
  absl::StatusOr<std::vector<float>> Read(const std::string& name,
                                          const std::vector<int64_t>& shape) const {
    const Place& place = tensors_.at(name);
    const SafetensorsFile& file = files_[place.file];
    const TensorInfo& tensor = file.tensors()[place.tensor];
    if (tensor.shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": tensor '", name, "' has the shape [", absl::StrJoin(tensor.shape, ", "),
          "], but the config's model has [", absl::StrJoin(shape, ", "), "] there"));
    }
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    std::vector<float> values(static_cast<size_t>(elements));
    const absl::Span<const std::byte> bytes = file.Data(tensor);
    if (tensor.dtype == DType::kF32) {
      Widen<float>(bytes, values);
    } else if (tensor.dtype == DType::kBF16) {
      Widen<kernels::Bf16>(bytes, values);
    } else if (tensor.dtype == DType::kF16) {
      Widen<kernels::Fp16>(bytes, values);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor '", name, "' is ",
                                                     NameOf(tensor.dtype),
                                                     "; F32, F16 and BF16 are read"));
    }
    return values;
  }

 private:
  struct Place {
    size_t file = 0;
    size_t tensor = 0;
  };

  absl::Status Add(const std::string& name) {
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(folder_ + "/" + name));
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const std::string& tensor = file.tensors()[i].name;
      if (!tensors_.emplace(tensor, Place{files_.size(), i}).second) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder_, ": tensor '", tensor, "' is in two files"));
      }
    }
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  std::string folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> tensors_;
};

// Constants that some versions of the library saved beside the parameters.
bool IsConstant(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".attention.bias") ||
         absl::EndsWith(name, ".attention.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq");
}

class Importer {
 public:
  Importer(const TensorFiles& files, const ModelConfig& config) : files_(files), config_(config) {
    for (const ParameterSpec& spec : GptParameters(config)) {
      places_[spec.name] = parameters_.size();
      parameters_.push_back({spec.name, spec.whole_shape,
                             std::vector<float>(static_cast<size_t>(spec.whole_elements()))});
    }
  }

  absl::StatusOr<std::vector<ReadParameter>> Run() {
    for (const TensorRow& row : TensorRows(config_)) WEFT_RETURN_IF_ERROR(Take(row));
    for (const std::string& name : files_.Names()) {
      if (used_.count(name) == 0) WEFT_RETURN_IF_ERROR(CheckOther(name));
    }
    return std::move(parameters_);
  }

 private:
  // GPT-2 was saved with and without the name of the part that the head stands on.
  std::string NameIn(const std::string& theirs) const {
    const std::string longer = "transformer." + theirs;
    return !files_.Has(theirs) && files_.Has(longer) ? longer : theirs;
  }

  absl::Status Take(const TensorRow& row) {
    const std::string name = NameIn(row.theirs);
    if (!files_.Has(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(files_.folder(), " has no tensor '", name, "', which the config's model ",
                       row.ours.empty() ? "reads" : absl::StrCat("has as ", row.ours)));
    }
    used_.insert(name);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> theirs, files_.Read(name, row.shape));
    if (row.ours.empty()) {
      if (std::all_of(theirs.begin(), theirs.end(), [](float v) { return v == 0; })) {
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(
          absl::StrCat(files_.folder(), ": tensor '", name,
                       "' is not zero, but the config's model has no such bias (model.bias)"));
    }
    std::vector<float>& ours = parameters_[places_.at(row.ours)].values;
    if (!row.repeats) {
      ToOurs(row, sizeof(float), BytesOf(theirs), BytesOf(ours));
      return absl::OkStatus();
    }
    std::vector<float> expected(theirs.size());
    ToTheirs(row, sizeof(float), BytesOf(std::as_const(ours)), BytesOf(expected));
    return CheckSame(name, row.ours, theirs, expected);
  }

  absl::Status CheckSame(const std::string& name, const std::string& ours,
                         const std::vector<float>& theirs,
                         const std::vector<float>& expected) const {
    if (std::memcmp(theirs.data(), expected.data(), theirs.size() * sizeof(float)) == 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        files_.folder(), ": tensor '", name, "' is not the same as the one before it that is ",
        ours, " here; the config's model has one parameter for both"));
  }

  // What no row named: nothing may be lost.
  absl::Status CheckOther(const std::string& name) const {
    if (IsConstant(name)) return absl::OkStatus();
    if (config_.tied && (name == "lm_head.weight" || name == "embed_out.weight")) {
      const ReadParameter& embedding = parameters_[places_.at("embedding.token")];
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> head, files_.Read(name, embedding.shape));
      return CheckSame(name, embedding.name, head, embedding.values);
    }
    return absl::InvalidArgumentError(
        absl::StrCat(files_.folder(), ": tensor '", name, "' has no place in the config's model"));
  }

  const TensorFiles& files_;
  const ModelConfig& config_;
  std::vector<ReadParameter> parameters_;
  std::map<std::string, size_t> places_;
  std::set<std::string> used_;
};

}  // namespace

absl::StatusOr<std::vector<ReadParameter>> ReadModel(const std::string& folder,
                                                     const ModelConfig& config) {
  const std::string path = folder + "/config.json";
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  WEFT_RETURN_IF_ERROR(CheckModelJson(text, path, config));
  TensorFiles files;
  WEFT_RETURN_IF_ERROR(files.Open(folder));
  return Importer(files, config).Run();
}

}  // namespace weft::train
