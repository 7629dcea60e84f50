// Tokenised text in Megatron-LM's format: <prefix>.bin holds the tokens back to back, <prefix>.idx
// says where each sequence lies and where documents begin. Files of either program serve the other.
//
//   .idx, little endian:  9 B "MMIDIDX\0\0" | u64 version = 1 | u8 token type | u64 S sequences |
//     u64 D boundaries | i32[S] lengths in tokens | i64[S] byte offsets in .bin |
//     i64[D] document boundaries as sequence numbers, first 0, last S | optional i8[S] modes
//
// The reader maps both files and checks everything at Open, so that reading cannot go out of range:
// a truncated or foreign file is an error that names the file, the offset and what is right.
#ifndef WEFT_TRAINER_DATA_INDEXED_DATASET_H_
#define WEFT_TRAINER_DATA_INDEXED_DATASET_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/files/file.h"

namespace weft {

// The numbers of the format. Codes 6 and 7 (f64, f32) are no tokens and are refused.
enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t SizeOf(TokenType type);            // bytes
absl::string_view NameOf(TokenType type);  // "u16"
// As Megatron chooses: u16 below 65,500 words, else i32.
TokenType TokenTypeFor(int64_t vocab_size);

// Const use is thread-safe.
class IndexedDataset {
 public:
  static absl::StatusOr<IndexedDataset> Open(const std::string& prefix);

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

  // Tokens [offset, offset + out.size()) of a sequence. OutOfRange where the sequence is shorter or
  // a 64-bit token does not fit.
  absl::Status Read(int64_t sequence, int64_t offset, absl::Span<int32_t> out) const;

 private:
  IndexedDataset(MappedFile index, MappedFile bin)
      : index_(std::move(index)), bin_(std::move(bin)) {}
  absl::Status ParseHeader();
  absl::Status CheckSequences();
  absl::Status CheckBoundaries() const;
  int64_t SequenceOffset(int64_t sequence) const;  // bytes
  const std::byte* At(int64_t offset) const { return index_.bytes().data() + offset; }

  std::string prefix_;
  MappedFile index_;
  MappedFile bin_;
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

}  // namespace weft

#endif  // WEFT_TRAINER_DATA_INDEXED_DATASET_H_
