#include "trainer/data/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/data/sentencepiece.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

// 256 bytes, unknown, end of document, line break, and room for letters and some pieces.
constexpr int32_t kSmallestVocabulary = 300;
// SentencePiece passes over longer sentences (its max_sentence_length is 4192 bytes).
constexpr size_t kLongestLine = 4000;

// SentencePiece says "[a line of its source] Vocabulary size too high (N). Please set it to a value
// <= M." when the text has too few different words.
absl::Status TrainingError(const std::string& error, int32_t vocab_size) {
  constexpr absl::string_view kLimit = "value <= ";
  size_t limit = error.find(kLimit.data(), 0, kLimit.size());
  if (limit == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("cannot learn a tokenizer: ", error));
  }
  absl::string_view most = absl::string_view(error).substr(limit + kLimit.size());
  return absl::InvalidArgumentError(
      absl::StrCat("the text is too small for a vocabulary of ", vocab_size,
                   " tokens: ", absl::StripSuffix(most, "."), " is the most it allows"));
}

}  // namespace

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

absl::StatusOr<Tokenizer> Tokenizer::Load(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string model, ReadFile(path));
  return FromModel(model, path);
}

absl::StatusOr<Tokenizer> Tokenizer::FromModel(const std::string& model, absl::string_view origin) {
  Tokenizer tokenizer;
  tokenizer.model_ = std::make_unique<internal::SentencePieceModel>();
  if (std::string error = tokenizer.model_->Load(model); !error.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin, " is not a SentencePiece model (a .model file of weft-data prepare or ",
        "spm_train is): ", error));
  }
  tokenizer.vocab_size_ = tokenizer.model_->vocab_size();
  tokenizer.eod_id_ = tokenizer.model_->eos_id();
  if (tokenizer.eod_id_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        origin, " has no end-of-sentence token, which is needed to end documents (eos_id = -1)"));
  }
  return tokenizer;
}

absl::Status Tokenizer::Encode(absl::string_view text, std::vector<int32_t>& ids) const {
  std::string error = model_->Encode(text.data(), text.size(), ids);
  return error.empty() ? absl::OkStatus() : absl::InternalError(absl::StrCat("encode: ", error));
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  for (auto begin = ids.begin(); begin != ids.end();) {
    auto end = std::find(begin, ids.end(), eod_id_);
    for (auto id = begin; id != end; ++id) {
      if (*id >= 0 && *id < vocab_size_) continue;
      return absl::OutOfRangeError(
          absl::StrCat("token ", *id, " is not one of the ", vocab_size_, " of the tokenizer"));
    }
    std::string document;
    std::string error = model_->Decode(std::vector<int32_t>(begin, end), document);
    if (!error.empty()) return absl::InternalError(absl::StrCat("decode: ", error));
    text += document;
    if (end == ids.end()) break;
    text += "\n\n";
    begin = end + 1;
  }
  return text;
}

absl::StatusOr<std::string> TrainTokenizer(const std::vector<std::string>& lines,
                                           int32_t vocab_size) {
  if (vocab_size < kSmallestVocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("a vocabulary of ", vocab_size, " tokens; ",
                                                   kSmallestVocabulary,
                                                   " is the least (256 of them are bytes)"));
  }
  if (lines.empty()) return absl::InvalidArgumentError("no text to learn a tokenizer from");
  size_t line = 0;
  size_t offset = 0;
  auto next = [&](std::string& sentence) {
    while (line < lines.size() && offset >= lines[line].size()) {
      ++line;
      offset = 0;
    }
    if (line == lines.size()) return false;
    size_t length = std::min(lines[line].size() - offset, kLongestLine);
    if (offset + length < lines[line].size()) {  // cut between words, at worst between letters
      size_t space = lines[line].rfind(' ', offset + length);
      if (space != std::string::npos && space > offset) length = space - offset;
      while (length > 1 && (lines[line][offset + length] & 0xC0) == 0x80) --length;
    }
    sentence.assign(lines[line], offset, length);
    offset += length;
    return true;
  };
  std::string model;
  if (std::string error = internal::TrainSentencePiece(vocab_size, next, model); !error.empty()) {
    return TrainingError(error, vocab_size);
  }
  return model;
}

absl::string_view SentencePieceVersion() { return WEFT_SENTENCEPIECE_VERSION; }

}  // namespace weft::train
