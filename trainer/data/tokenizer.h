// Text to tokens and back: byte-pair encoding by SentencePiece. Models of other programs load too.
//
// Models trained here lose nothing: Decode(Encode(text)) == text for every UTF-8 text. A document
// ends with the token eod_id(), which no text encodes to.
#ifndef WEFT_TRAINER_DATA_TOKENIZER_H_
#define WEFT_TRAINER_DATA_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::train {

namespace internal {
class SentencePieceModel;
}

// Const use is thread-safe.
class Tokenizer {
 public:
  static absl::StatusOr<Tokenizer> Load(const std::string& path);
  // From the content of a model file; `origin` names it in errors.
  static absl::StatusOr<Tokenizer> FromModel(const std::string& model, absl::string_view origin);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  int32_t vocab_size() const { return vocab_size_; }
  int32_t eod_id() const { return eod_id_; }

  // Replaces `ids`. Valid UTF-8 expected. Adds no eod.
  absl::Status Encode(absl::string_view text, std::vector<int32_t>& ids) const;
  // Documents, ended by eod, are set apart by an empty line. OutOfRange names an id that is none.
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const;

 private:
  Tokenizer();
  std::unique_ptr<internal::SentencePieceModel> model_;
  int32_t vocab_size_ = 0;
  int32_t eod_id_ = 0;
};

// Learns `vocab_size` tokens, among them 256 for single bytes, from `lines` (without line breaks;
// UTF-8). The result is the content of a model file and depends on the arguments alone. Takes some
// seconds for 10 MB. InvalidArgument when the text is too small for so many tokens.
absl::StatusOr<std::string> TrainTokenizer(const std::vector<std::string>& lines,
                                           int32_t vocab_size);

// Version of the SentencePiece library that this program was built with.
absl::string_view SentencePieceVersion();

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_TOKENIZER_H_
