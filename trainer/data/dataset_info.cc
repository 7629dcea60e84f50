#include "trainer/data/dataset_info.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormatVersion = 1;

// How often each token occurs.
absl::StatusOr<std::vector<int64_t>> Count(const IndexedDataset& dataset, int64_t vocab_size) {
  std::vector<int64_t> counts(static_cast<size_t>(vocab_size));
  std::vector<int32_t> tokens;
  for (int64_t sequence = 0; sequence < dataset.sequences(); ++sequence) {
    tokens.resize(static_cast<size_t>(dataset.SequenceLength(sequence)));
    WEFT_RETURN_IF_ERROR(dataset.Read(sequence, 0, absl::MakeSpan(tokens)));
    for (int32_t token : tokens) {
      if (token < 0 || token >= vocab_size) {
        return absl::OutOfRangeError(absl::StrCat(dataset.prefix(), ": token ", token,
                                                  " of sequence ", sequence,
                                                  " is not in a vocabulary of ", vocab_size));
      }
      ++counts[static_cast<size_t>(token)];
    }
  }
  return counts;
}

// Reads members with their types checked; keeps the first error.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // A number that is not whole, negative or too large for T is none.
  template <typename T>
  void Whole(const char* key, T& out, T least = 0, T most = std::numeric_limits<T>::max()) {
    const Json* member = Find(key);
    const bool is_whole = member != nullptr && member->is_number_unsigned();
    const uint64_t value = is_whole ? member->get<uint64_t>() : 0;
    if (!is_whole || value < static_cast<uint64_t>(least) || value > static_cast<uint64_t>(most)) {
      return Fail(key, member, absl::StrCat("a whole number from ", least, " to ", most));
    }
    out = static_cast<T>(value);
  }
  void Number(const char* key, double& out) {
    const Json* member = Find(key);
    if (member == nullptr || !member->is_number()) return Fail(key, member, "a number");
    out = member->get<double>();
  }
  void Text(const char* key, std::string& out) {
    const Json* member = Find(key);
    if (member == nullptr || !member->is_string()) return Fail(key, member, "a text");
    out = member->get<std::string>();
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* key) const {
    auto member = object_.find(key);
    return member == object_.end() ? nullptr : &*member;
  }
  void Fail(const char* key, const Json* found, absl::string_view right) {
    if (!status_.ok()) return;
    const std::string text =
        found == nullptr ? std::string("missing") : JsonText(*found).substr(0, 40);
    status_ = absl::DataLossError(
        absl::StrCat(path_, ": '", key, "' is ", text, "; it should be ", right));
  }
  const Json& object_;
  std::string path_;
  absl::Status status_;
};

absl::Status CheckSameTokenizer(const std::string& first_prefix, const DatasetInfo& first,
                                const std::string& prefix, const DatasetInfo& info) {
  const auto differ = [&](absl::string_view what, const auto& one, const auto& other) {
    return absl::FailedPreconditionError(
        absl::StrCat("datasets ", first_prefix, " and ", prefix, " differ in ", what, ": ", one,
                     " and ", other, "; a run takes datasets of one tokenizer (weft-data prepare ",
                     "--tokenizer names an existing one)"));
  };
  if (first.vocab_size != info.vocab_size) {
    return differ("their vocabulary ('vocab_size')", first.vocab_size, info.vocab_size);
  }
  if (first.eod_id != info.eod_id) {
    return differ("the token that ends a document ('eod_id')", first.eod_id, info.eod_id);
  }
  if (first.tokenizer == info.tokenizer) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::string one, ReadFile(first.tokenizer));
  WEFT_ASSIGN_OR_RETURN(const std::string other, ReadFile(info.tokenizer));
  return one == other ? absl::OkStatus()
                      : differ("their tokenizer's bytes", first.tokenizer, info.tokenizer);
}

}  // namespace

absl::Status WriteDatasetInfo(const std::string& prefix, const DatasetInfo& info) {
  const std::string path = prefix + ".json";
  std::filesystem::path folder = std::filesystem::absolute(ParentFolder(path));
  std::string tokenizer =
      std::filesystem::absolute(info.tokenizer).lexically_relative(folder).string();
  Json json = {
      {"format", "weft-dataset"},
      {"version", kFormatVersion},
      {"vocab_size", info.vocab_size},
      {"eod_id", info.eod_id},
      {"train_documents", info.train_documents},
      {"train_tokens", info.train_tokens},
      {"validation_documents", info.validation_documents},
      {"validation_tokens", info.validation_tokens},
      {"unigram_loss", info.unigram_loss},
      {"tokenizer", tokenizer},
      {"seed", info.seed},
      {"validation_fraction", info.validation_fraction},
      {"split", info.split},
      {"cleaner", info.cleaner},
      {"invalid_utf8", info.invalid_utf8},
      {"inputs", info.inputs},
      {"sentencepiece_version", info.sentencepiece_version},
  };
  return WriteFileAtomically(path, JsonText(json, 2) + "\n");
}

absl::StatusOr<DatasetInfo> ReadDatasetInfo(const std::string& prefix) {
  const std::string path = prefix + ".json";
  absl::StatusOr<std::string> read = ReadFile(path);
  if (absl::IsNotFound(read.status())) {
    return absl::NotFoundError(absl::StrCat(read.status().message(),
                                            "; weft-data prepare makes it, and tools/dev demo ",
                                            "that of the dictionary"));
  }
  WEFT_ASSIGN_OR_RETURN(const std::string text, std::move(read));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("format") || json["format"] != "weft-dataset") {
    return absl::DataLossError(absl::StrCat(path, " is not a description made by weft-data"));
  }
  DatasetInfo info;
  Fields fields(json, path);
  int version = 0;
  fields.Whole("version", version);
  fields.Whole("vocab_size", info.vocab_size, 1, kVocabularyMost);
  fields.Whole("eod_id", info.eod_id, 0, std::max(info.vocab_size - 1, 0));
  fields.Whole("train_documents", info.train_documents);
  fields.Whole("train_tokens", info.train_tokens);
  fields.Whole("validation_documents", info.validation_documents);
  fields.Whole("validation_tokens", info.validation_tokens);
  fields.Number("unigram_loss", info.unigram_loss);
  fields.Text("tokenizer", info.tokenizer);
  fields.Whole("seed", info.seed);
  fields.Number("validation_fraction", info.validation_fraction);
  fields.Text("split", info.split);
  fields.Text("cleaner", info.cleaner);
  fields.Whole("invalid_utf8", info.invalid_utf8);
  fields.Text("sentencepiece_version", info.sentencepiece_version);
  WEFT_RETURN_IF_ERROR(fields.status());
  if (version != kFormatVersion) {
    return absl::DataLossError(absl::StrCat(path, " has version ", version, "; this program knows ",
                                            kFormatVersion, ": run weft-data prepare again"));
  }
  if (json.contains("inputs") && json["inputs"].is_array()) {
    for (const Json& input : json["inputs"]) {
      if (input.is_string()) info.inputs.push_back(input.get<std::string>());
    }
  }
  info.tokenizer =
      (std::filesystem::path(ParentFolder(path)) / info.tokenizer).lexically_normal().string();
  return info;
}

absl::StatusOr<std::vector<DatasetInfo>> ReadDatasetInfos(absl::Span<const std::string> prefixes) {
  if (prefixes.empty()) return absl::NotFoundError("no dataset is named (data.prefix is empty)");
  std::vector<DatasetInfo> infos;
  for (const std::string& prefix : prefixes) {
    WEFT_ASSIGN_OR_RETURN(DatasetInfo info, ReadDatasetInfo(prefix));
    infos.push_back(std::move(info));
    WEFT_RETURN_IF_ERROR(CheckSameTokenizer(prefixes[0], infos[0], prefix, infos.back()));
  }
  return infos;
}

absl::StatusOr<double> UnigramLoss(const IndexedDataset& train, const IndexedDataset& validation,
                                   int64_t vocab_size) {
  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> model, Count(train, vocab_size));
  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> seen, Count(validation, vocab_size));
  if (validation.tokens() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(validation.prefix(), " has no tokens"));
  }
  const double total = static_cast<double>(train.tokens() + vocab_size);
  double loss = 0;
  for (size_t token = 0; token < model.size(); ++token) {
    loss -=
        static_cast<double>(seen[token]) * std::log(static_cast<double>(model[token] + 1) / total);
  }
  return loss / static_cast<double>(validation.tokens());
}

}  // namespace weft::train
