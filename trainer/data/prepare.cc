#include "trainer/data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/data/gcide.h"
#include "trainer/data/tokenizer.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

constexpr uint64_t kSplitStream = uint64_t{0x73706C} << 40;   // + number of the document
constexpr uint64_t kSampleStream = uint64_t{0x736D70} << 40;  // which documents the tokenizer sees
constexpr size_t kDocumentsAtOnce = 4096;  // encoded in parallel, then written in order

absl::string_view NameOf(DocumentSplit split) {
  switch (split) {
    case DocumentSplit::kBlankLines:
      return "blank-lines";
    case DocumentSplit::kLines:
      return "lines";
    case DocumentSplit::kFile:
      return "file";
  }
  return "?";
}

absl::string_view NameOf(TextCleaner cleaner) {
  return cleaner == TextCleaner::kGcide ? "gcide" : "none";
}

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const PrepareProgress& progress)
      : options_(options), progress_(progress) {}
  absl::StatusOr<DatasetInfo> Run();

 private:
  absl::Status Check() const;
  void Report(absl::string_view phase, double fraction) const {
    if (progress_) progress_(phase, fraction);
  }
  // One file as documents; they are kept in `text` or in `cleaned`.
  absl::Status ReadDocuments(const std::string& path);
  bool IsValidation(uint64_t document) const;
  absl::StatusOr<std::string> LearnTokenizer();
  absl::Status EncodeAll(IndexedDatasetWriter& train, IndexedDatasetWriter& validation);
  absl::Status EncodeFile(uint64_t first_document, double share_before, double share,
                          IndexedDatasetWriter& train, IndexedDatasetWriter& validation);
  absl::Status EncodeRange(size_t begin, size_t end);

  const PrepareOptions& options_;
  const PrepareProgress& progress_;
  std::optional<Tokenizer> tokenizer_;
  std::string text_;                           // of the file being read
  std::vector<std::string> cleaned_;           // its documents, when a cleaner made them anew
  std::vector<absl::string_view> documents_;   // its documents
  std::vector<std::vector<int32_t>> encoded_;  // of the documents being encoded
  int64_t invalid_utf8_ = 0;
};

absl::Status Preparation::Check() const {
  if (options_.inputs.empty()) return absl::InvalidArgumentError("no input file is given");
  if (options_.output_prefix.empty()) {
    return absl::InvalidArgumentError("no output prefix is given");
  }
  if (!(options_.validation_fraction > 0 && options_.validation_fraction < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("a validation fraction of ",
                                                   options_.validation_fraction,
                                                   "; right is more than 0 and less than 1"));
  }
  return absl::OkStatus();
}

absl::Status Preparation::ReadDocuments(const std::string& path) {
  documents_.clear();
  cleaned_.clear();
  absl::StatusOr<std::string> text = ReadTextFile(path, options_.text_most);
  if (absl::IsResourceExhausted(text.status())) {
    return Annotate(text.status(),
                    "an input is larger than --text-most; raise it where memory "
                    "holds the file twice, or split the file");
  }
  WEFT_ASSIGN_OR_RETURN(text_, std::move(text));
  invalid_utf8_ += ReplaceInvalidUtf8(text_);
  if (options_.cleaner == TextCleaner::kGcide) {
    cleaned_ = CleanGcide(text_);
    documents_.assign(cleaned_.begin(), cleaned_.end());
  } else {
    documents_ = SplitDocuments(text_, options_.split);
  }
  if (documents_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no document: it is empty, or not what the cleaner '",
                     NameOf(options_.cleaner), "' expects"));
  }
  return absl::OkStatus();
}

bool Preparation::IsValidation(uint64_t document) const {
  return Random(options_.seed, kSplitStream + document).Uniform() < options_.validation_fraction;
}

// Every training document draws a number; those with the smallest are the sample, as many as fill
// tokenizer_sample_bytes. Independent of how the text is spread over files of any order of size.
absl::StatusOr<std::string> Preparation::LearnTokenizer() {
  struct Drawn {
    uint64_t key;
    std::string text;
    bool operator<(const Drawn& other) const { return key < other.key; }
  };
  std::vector<Drawn> heap;  // the largest key first, to be thrown out
  int64_t bytes = 0;
  uint64_t document = 0;
  Random random(options_.seed, kSampleStream);
  for (const std::string& path : options_.inputs) {
    Report(absl::StrCat("read ", path), -1);
    WEFT_RETURN_IF_ERROR(ReadDocuments(path));
    for (absl::string_view text : documents_) {
      uint64_t key = random();
      if (IsValidation(document++)) continue;
      if (bytes >= options_.tokenizer_sample_bytes && key >= heap.front().key) continue;
      heap.push_back({key, std::string(text)});
      std::push_heap(heap.begin(), heap.end());
      bytes += static_cast<int64_t>(text.size());
      while (bytes - static_cast<int64_t>(heap.front().text.size()) >=
             options_.tokenizer_sample_bytes) {
        bytes -= static_cast<int64_t>(heap.front().text.size());
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
      }
    }
  }
  std::sort(heap.begin(), heap.end());
  std::vector<std::string> lines;
  for (const Drawn& drawn : heap) {
    for (absl::string_view line : absl::StrSplit(drawn.text, '\n', absl::SkipWhitespace())) {
      lines.emplace_back(line);
    }
  }
  heap.clear();
  Report("learn tokenizer", -1);
  return TrainTokenizer(lines, options_.vocab_size);
}

absl::Status Preparation::EncodeRange(size_t begin, size_t end) {
  int threads = options_.threads > 0 ? options_.threads
                                     : static_cast<int>(std::thread::hardware_concurrency());
  encoded_.resize(end - begin);
  std::atomic<size_t> next{0};
  std::vector<absl::Status> statuses(static_cast<size_t>(std::max(threads, 1)));
  auto work = [&](absl::Status& status) {
    constexpr size_t kGrab = 64;
    for (size_t first; (first = next.fetch_add(kGrab)) < encoded_.size();) {
      for (size_t i = first; i < std::min(first + kGrab, encoded_.size()); ++i) {
        status.Update(tokenizer_->Encode(documents_[begin + i], encoded_[i]));
        encoded_[i].push_back(tokenizer_->eod_id());
      }
    }
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < statuses.size(); ++i) {
    helpers.emplace_back([&work, &status = statuses[i]] { work(status); });
  }
  work(statuses[0]);
  for (std::thread& helper : helpers) helper.join();
  for (const absl::Status& status : statuses) WEFT_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status Preparation::EncodeFile(uint64_t first_document, double share_before, double share,
                                     IndexedDatasetWriter& train,
                                     IndexedDatasetWriter& validation) {
  for (size_t begin = 0; begin < documents_.size(); begin += kDocumentsAtOnce) {
    Report("encode", share_before + share * static_cast<double>(begin) /
                                        static_cast<double>(documents_.size()));
    size_t end = std::min(begin + kDocumentsAtOnce, documents_.size());
    WEFT_RETURN_IF_ERROR(EncodeRange(begin, end));
    for (size_t i = begin; i < end; ++i) {
      IndexedDatasetWriter& writer = IsValidation(first_document + i) ? validation : train;
      WEFT_RETURN_IF_ERROR(writer.AddDocument(encoded_[i - begin]));
    }
  }
  return absl::OkStatus();
}

absl::Status Preparation::EncodeAll(IndexedDatasetWriter& train, IndexedDatasetWriter& validation) {
  uint64_t document = 0;
  const double share = 1.0 / static_cast<double>(options_.inputs.size());
  invalid_utf8_ = 0;  // counted by the first reading too
  for (size_t i = 0; i < options_.inputs.size(); ++i) {
    WEFT_RETURN_IF_ERROR(ReadDocuments(options_.inputs[i]));
    WEFT_RETURN_IF_ERROR(
        EncodeFile(document, share * static_cast<double>(i), share, train, validation));
    document += documents_.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<DatasetInfo> Preparation::Run() {
  WEFT_RETURN_IF_ERROR(Check());
  const std::string& prefix = options_.output_prefix;
  WEFT_RETURN_IF_ERROR(MakeFolders(ParentFolder(prefix)));
  const std::string model_path =
      options_.tokenizer.empty() ? prefix + ".model" : options_.tokenizer;
  std::string model;
  if (options_.tokenizer.empty()) {
    WEFT_ASSIGN_OR_RETURN(model, LearnTokenizer());
  } else {
    WEFT_ASSIGN_OR_RETURN(model, ReadFile(model_path));
  }
  WEFT_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::FromModel(model, model_path));

  const int32_t vocab = tokenizer_->vocab_size();
  TokenType type = TokenTypeFor(vocab);
  WEFT_ASSIGN_OR_RETURN(auto train, IndexedDatasetWriter::Create(prefix + "_train", type));
  WEFT_ASSIGN_OR_RETURN(auto validation, IndexedDatasetWriter::Create(prefix + "_valid", type));
  WEFT_RETURN_IF_ERROR(EncodeAll(train, validation));
  if (train.documents() == 0 || validation.documents() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text has too few documents to hold some out: ", train.documents(), " for training, ",
        validation.documents(), " for validation; try another split or validation fraction"));
  }

  Report("write", -1);
  // From here until the new description is written, there is none.
  if (unlink((prefix + ".json").c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("remove the old ", prefix, ".json"));
  }
  if (options_.tokenizer.empty()) WEFT_RETURN_IF_ERROR(WriteFileAtomically(model_path, model));
  WEFT_RETURN_IF_ERROR(train.Commit());
  WEFT_RETURN_IF_ERROR(validation.Commit());
  WEFT_ASSIGN_OR_RETURN(auto train_set, IndexedDataset::Open(prefix + "_train", vocab));
  WEFT_ASSIGN_OR_RETURN(auto validation_set, IndexedDataset::Open(prefix + "_valid", vocab));

  DatasetInfo info;
  info.vocab_size = vocab;
  info.eod_id = tokenizer_->eod_id();
  info.train_documents = train.documents();
  info.train_tokens = train.tokens();
  info.validation_documents = validation.documents();
  info.validation_tokens = validation.tokens();
  WEFT_ASSIGN_OR_RETURN(info.unigram_loss, UnigramLoss(train_set, validation_set, info.vocab_size));
  info.tokenizer = model_path;
  info.seed = options_.seed;
  info.validation_fraction = options_.validation_fraction;
  info.split =
      options_.cleaner == TextCleaner::kGcide ? "entries" : std::string(NameOf(options_.split));
  info.cleaner = std::string(NameOf(options_.cleaner));
  info.invalid_utf8 = invalid_utf8_;
  info.inputs = options_.inputs;
  info.sentencepiece_version = std::string(SentencePieceVersion());
  WEFT_RETURN_IF_ERROR(WriteDatasetInfo(prefix, info));
  return info;
}

}  // namespace

absl::StatusOr<TextCleaner> ParseTextCleaner(absl::string_view name) {
  if (name == "none") return TextCleaner::kNone;
  if (name == "gcide") return TextCleaner::kGcide;
  return absl::InvalidArgumentError(
      absl::StrCat("cleaner '", name, "' is none; right are none, gcide"));
}

absl::StatusOr<DatasetInfo> PrepareDataset(const PrepareOptions& options,
                                           const PrepareProgress& progress) {
  return Preparation(options, progress).Run();
}

}  // namespace weft::train
