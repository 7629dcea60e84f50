// Tokenised text in Megatron-LM's format: <prefix>.bin holds the tokens back to back, <prefix>.idx
// says where each sequence lies and where documents begin. Files of either program serve the other.
//
//   .idx, little endian:  9 B "MMIDIDX\0\0" | u64 version = 1 | u8 token type | u64 S sequences |
//     u64 D boundaries | i32[S] lengths in tokens | i64[S] byte offsets in .bin |
//     i64[D] document boundaries as sequence numbers, first 0, last S | optional i8[S] modes
//
// The reader maps both files and checks the whole index at Open, so that reading cannot go out of
// range, and every token id as it is read: a truncated, damaged or foreign file is an error that
// names the file, the place and what is right.
#ifndef WEFT_TRAINER_DATA_INDEXED_DATASET_H_
#define WEFT_TRAINER_DATA_INDEXED_DATASET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/files/file.h"

namespace weft::train {

// The numbers of the format. Codes 6 and 7 (f64, f32) are no tokens and are refused.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t SizeOf(TokenType type);            // bytes
absl::string_view NameOf(TokenType type);  // "u16"
// As Megatron chooses: u16 below 65,500 words, else i32.
TokenType TokenTypeFor(int64_t vocab_size);

// Above every id: what does not know the vocabulary reads any number of 32 bits.
inline constexpr int64_t kAnyVocabulary = int64_t{1} << 32;

// Const use is thread-safe.
class IndexedDataset {
 public:
  // Read refuses ids that are not in [0, vocab_size).
  static absl::StatusOr<IndexedDataset> Open(const std::string& prefix,
                                             int64_t vocab_size = kAnyVocabulary);

  TokenType token_type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return boundaries_ - 1; }
  int64_t tokens() const { return tokens_; }
  bool has_modes() const { return has_modes_; }
  const std::string& prefix() const { return prefix_; }

  int64_t SequenceLength(int64_t sequence) const;  // tokens
  // Sequences [first, last) of a document; 0 <= document < documents().
  int64_t FirstSequence(int64_t document) const;
  int64_t LastSequence(int64_t document) const { return FirstSequence(document + 1); }

  // Tokens [offset, offset + out.size()) of a sequence. OutOfRange where the sequence is shorter;
  // DataLoss, naming file, document, position, id and vocabulary, where an id is not in it. `out`
  // then holds ids that index nothing.
  absl::Status Read(int64_t sequence, int64_t offset, absl::Span<int32_t> out) const;

 private:
  IndexedDataset(MappedFile index, MappedFile bin, int64_t vocab_size)
      : index_(std::move(index)), bin_(std::move(bin)), vocab_size_(vocab_size) {}
  absl::Status ParseHeader();
  absl::Status CheckSequences();
  absl::Status CheckBoundaries() const;
  int64_t SequenceOffset(int64_t sequence) const;  // bytes
  // The error for the first of `count` tokens at `offset` that is not in the vocabulary.
  absl::Status ForeignToken(int64_t sequence, int64_t offset, int64_t count) const;
  const std::byte* At(int64_t offset) const { return index_.bytes().data() + offset; }

  std::string prefix_;
  MappedFile index_;
  MappedFile bin_;
  int64_t vocab_size_;
  TokenType type_ = TokenType::kU16;
  int64_t sequences_ = 0;
  int64_t boundaries_ = 0;
  int64_t tokens_ = 0;
  bool has_modes_ = false;
};

// Writes both files under temporary names; Commit() gives them their own, .bin first. A dataset
// that was there before is taken away by the same Commit. 12 bytes of memory a sequence.
class IndexedDatasetWriter {
 public:
  static absl::StatusOr<IndexedDatasetWriter> Create(const std::string& prefix, TokenType type);
  // One document of one sequence. OutOfRange names a token that the type cannot hold.
  absl::Status AddDocument(absl::Span<const int32_t> tokens);
  absl::Status Commit();

  int64_t documents() const { return static_cast<int64_t>(lengths_.size()); }
  int64_t tokens() const { return tokens_; }

 private:
  IndexedDatasetWriter(std::string prefix, TokenType type, AtomicFile bin)
      : prefix_(std::move(prefix)), type_(type), bin_(std::move(bin)) {}

  std::string prefix_;
  TokenType type_;
  AtomicFile bin_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> offsets_;
  std::vector<std::byte> encoded_;  // one document
  int64_t tokens_ = 0;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_DATA_INDEXED_DATASET_H_
