#include "trainer/data/sentencepiece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <unordered_map>

namespace sentencepiece::logging {
// Exported by the library, in none of its installed headers. Errors come back as a status.
void SetMinLogLevel(int level);
}  // namespace sentencepiece::logging

namespace weft::train::internal {
namespace {

constexpr int kFatalOnly = 4;  // its levels: 0 info, 1 warning, 2 error, 3 fatal

class Sentences final : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::function<bool(std::string&)>& next) : next_(next) { Next(); }
  bool done() const override { return done_; }
  void Next() override { done_ = !next_(value_); }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::function<bool(std::string&)>& next_;
  std::string value_;
  bool done_ = false;
};

}  // namespace

struct SentencePieceModel::Implementation {
  sentencepiece::SentencePieceProcessor processor;
};

SentencePieceModel::SentencePieceModel() : implementation_(std::make_unique<Implementation>()) {}
SentencePieceModel::~SentencePieceModel() = default;

std::string SentencePieceModel::Load(const std::string& serialized) {
  sentencepiece::logging::SetMinLogLevel(kFatalOnly);
  return implementation_->processor.LoadFromSerializedProto(serialized).ToString() == "OK"
             ? ""
             : "SentencePiece cannot read it";
}

std::string SentencePieceModel::Encode(const char* text, size_t size,
                                       std::vector<int32_t>& ids) const {
  auto status = implementation_->processor.Encode(std::string_view(text, size), &ids);
  return status.ok() ? "" : status.ToString();
}

std::string SentencePieceModel::Decode(const std::vector<int32_t>& ids, std::string& text) const {
  auto status = implementation_->processor.Decode(ids, &text);
  return status.ok() ? "" : status.ToString();
}

int32_t SentencePieceModel::vocab_size() const { return implementation_->processor.GetPieceSize(); }

int32_t SentencePieceModel::eos_id() const { return implementation_->processor.eos_id(); }

std::string TrainSentencePiece(int32_t vocab_size, const std::function<bool(std::string&)>& next,
                               std::string& serialized) {
  // Lossless: no normalisation, white space kept, unknown characters as bytes; a line break is one
  // token, so that the shape of a text can be learnt.
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"allow_whitespace_only_pieces", "true"},
      {"add_dummy_prefix", "false"},
      {"byte_fallback", "true"},
      {"split_digits", "true"},
      {"character_coverage", "0.9995"},
      {"user_defined_symbols", "\n"},
      {"unk_id", "0"},
      {"bos_id", "-1"},
      {"eos_id", "1"},
      {"pad_id", "-1"},
      {"minloglevel", std::to_string(kFatalOnly)},
  };
  sentencepiece::logging::SetMinLogLevel(kFatalOnly);
  Sentences sentences(next);
  auto status = sentencepiece::SentencePieceTrainer::Train(options, &sentences, &serialized);
  return status.ok() ? "" : status.ToString();
}

}  // namespace weft::train::internal
