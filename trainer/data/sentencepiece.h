// SentencePiece behind standard types only. Its headers put std::string_view into namespace absl,
// which no file that includes abseil can bear; so this header includes neither, and tokenizer.h is
// the one to use.
#ifndef WEFT_TRAINER_DATA_SENTENCEPIECE_H_
#define WEFT_TRAINER_DATA_SENTENCEPIECE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::train::internal {

// Const use is thread-safe.
class SentencePieceModel {
 public:
  SentencePieceModel();
  ~SentencePieceModel();

  // Each returns "" or what went wrong.
  std::string Load(const std::string& serialized);
  std::string Encode(const char* text, size_t size, std::vector<int32_t>& ids) const;
  std::string Decode(const std::vector<int32_t>& ids, std::string& text) const;

  int32_t vocab_size() const;
  int32_t eos_id() const;  // -1: the model has none

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Byte-pair encoding. `next` gives the sentences one by one and false at the end. Returns "" or
// what went wrong; may write nothing to the terminal.
std::string TrainSentencePiece(int32_t vocab_size, const std::function<bool(std::string&)>& next,
                               std::string& serialized);

}  // namespace weft::train::internal

#endif  // WEFT_TRAINER_DATA_SENTENCEPIECE_H_
