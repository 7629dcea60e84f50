#include "trainer/data/indexed_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr char kMagic[] = "MMIDIDX\0";  // with the literal's own zero: 9 bytes
static_assert(sizeof(kMagic) == 9);
constexpr uint64_t kVersion = 1;
constexpr int64_t kTypeOffset = 17;
constexpr int64_t kHeaderBytes = 34;

template <typename T>
T Load(const std::byte* at) {  // the arrays start at byte 34: unaligned
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Copies out.size() tokens of type T. Returns the largest, negative ones counting as above all
// others, for 1 ns a token more, without a branch. An i64 that does not fit in 32 bits gives 2^32.
template <typename T>
int64_t Widen(const std::byte* from, absl::Span<int32_t> out) {
  uint32_t largest = 0;
  bool fits = true;
  for (size_t i = 0; i < out.size(); ++i) {
    T value = Load<T>(from + i * sizeof(T));
    out[i] = static_cast<int32_t>(value);
    largest = std::max(largest, static_cast<uint32_t>(out[i]));
    if constexpr (sizeof(T) > sizeof(int32_t)) fits &= static_cast<T>(out[i]) == value;
  }
  return fits ? int64_t{largest} : kAnyVocabulary;
}

int64_t Widen(TokenType type, const std::byte* from, absl::Span<int32_t> out) {
  switch (type) {
    case TokenType::kU8:
      return Widen<uint8_t>(from, out);
    case TokenType::kI8:
      return Widen<int8_t>(from, out);
    case TokenType::kI16:
      return Widen<int16_t>(from, out);
    case TokenType::kI32:
      return Widen<int32_t>(from, out);
    case TokenType::kI64:
      return Widen<int64_t>(from, out);
    case TokenType::kU16:
      return Widen<uint16_t>(from, out);
  }
  return kAnyVocabulary;
}

template <typename T>
bool Narrow(absl::Span<const int32_t> tokens, std::vector<std::byte>& out, int32_t& misfit) {
  out.resize(tokens.size() * sizeof(T));
  for (size_t i = 0; i < tokens.size(); ++i) {
    T value = static_cast<T>(tokens[i]);
    if (static_cast<int64_t>(value) != tokens[i]) {
      misfit = tokens[i];
      return false;
    }
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
  return true;
}

bool Narrow(TokenType type, absl::Span<const int32_t> tokens, std::vector<std::byte>& out,
            int32_t& misfit) {
  switch (type) {
    case TokenType::kU8:
      return Narrow<uint8_t>(tokens, out, misfit);
    case TokenType::kI8:
      return Narrow<int8_t>(tokens, out, misfit);
    case TokenType::kI16:
      return Narrow<int16_t>(tokens, out, misfit);
    case TokenType::kI32:
      return Narrow<int32_t>(tokens, out, misfit);
    case TokenType::kI64:
      return Narrow<int64_t>(tokens, out, misfit);
    case TokenType::kU16:
      return Narrow<uint16_t>(tokens, out, misfit);
  }
  return false;
}

absl::Status Malformed(const std::string& path, int64_t offset, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ", byte ", offset, ": ", what));
}

}  // namespace

int64_t SizeOf(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

absl::string_view NameOf(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "u8";
    case TokenType::kI8:
      return "i8";
    case TokenType::kI16:
      return "i16";
    case TokenType::kI32:
      return "i32";
    case TokenType::kI64:
      return "i64";
    case TokenType::kU16:
      return "u16";
  }
  return "?";
}

TokenType TokenTypeFor(int64_t vocab_size) {
  return vocab_size < 65500 ? TokenType::kU16 : TokenType::kI32;
}

absl::StatusOr<IndexedDataset> IndexedDataset::Open(const std::string& prefix, int64_t vocab_size) {
  auto index = MappedFile::Open(prefix + ".idx");
  if (!index.ok()) {
    return Annotate(index.status(),
                    absl::StrCat("dataset ", prefix, " (a prefix: .idx and .bin are added)"));
  }
  WEFT_ASSIGN_OR_RETURN(MappedFile bin, MappedFile::Open(prefix + ".bin"));
  IndexedDataset dataset(*std::move(index), std::move(bin), vocab_size);
  dataset.prefix_ = prefix;
  WEFT_RETURN_IF_ERROR(dataset.ParseHeader());
  WEFT_RETURN_IF_ERROR(dataset.CheckSequences());
  WEFT_RETURN_IF_ERROR(dataset.CheckBoundaries());
  return dataset;
}

absl::Status IndexedDataset::ParseHeader() {
  const std::string& path = index_.path();
  const auto size = static_cast<int64_t>(index_.bytes().size());
  if (size < kHeaderBytes) {
    return Malformed(path, size,
                     absl::StrCat("ends within the header of ", kHeaderBytes, " bytes"));
  }
  if (std::memcmp(At(0), kMagic, sizeof(kMagic)) != 0) {
    return Malformed(path, 0, "not a Megatron index: it should begin with MMIDIDX and two zeros");
  }
  if (uint64_t version = Load<uint64_t>(At(9)); version != kVersion) {
    return Malformed(path, 9, absl::StrCat("version ", version, "; only ", kVersion, " is known"));
  }
  auto code = Load<uint8_t>(At(kTypeOffset));
  if (code == 0 || code == 6 || code == 7 || code > 8) {
    return Malformed(
        path, kTypeOffset,
        absl::StrCat("token type ", code, "; right are 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16"));
  }
  type_ = static_cast<TokenType>(code);
  auto sequences = Load<uint64_t>(At(18));
  auto boundaries = Load<uint64_t>(At(26));
  const auto room = static_cast<uint64_t>(size);  // also keeps the sums below from overflowing
  if (sequences > room / 12 || boundaries > room / 8) {
    return Malformed(path, 18,
                     absl::StrCat(sequences, " sequences and ", boundaries,
                                  " boundaries do not fit in a file of ", size, " bytes"));
  }
  sequences_ = static_cast<int64_t>(sequences);
  boundaries_ = static_cast<int64_t>(boundaries);
  int64_t plain = kHeaderBytes + 12 * sequences_ + 8 * boundaries_;
  if (size != plain && size != plain + sequences_) {
    return Malformed(
        path, size,
        absl::StrCat("the file ends here, but ", sequences, " sequences and ", boundaries,
                     " boundaries take ", plain, " bytes, or ", plain + sequences_, " with modes"));
  }
  has_modes_ = sequences_ > 0 && size == plain + sequences_;
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckSequences() {
  const auto bin_size = static_cast<int64_t>(bin_.bytes().size());
  const int64_t width = SizeOf(type_);
  for (int64_t i = 0; i < sequences_; ++i) {
    int64_t length = SequenceLength(i);
    int64_t offset = SequenceOffset(i);
    if (length < 0) {
      return Malformed(index_.path(), kHeaderBytes + 4 * i,
                       absl::StrCat("sequence ", i, " has the length ", length));
    }
    if (offset < 0 || offset > bin_size || length * width > bin_size - offset) {
      return Malformed(
          index_.path(), kHeaderBytes + 4 * sequences_ + 8 * i,
          absl::StrCat("sequence ", i, " lies at byte ", offset, " and has ", length, " tokens of ",
                       width, " bytes, but ", bin_.path(), " has only ", bin_size, " bytes"));
    }
    tokens_ += length;
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckBoundaries() const {
  int64_t at = kHeaderBytes + 12 * sequences_;
  if (boundaries_ < 1) return Malformed(index_.path(), 26, "no document boundary; at least one is");
  int64_t before = 0;
  for (int64_t i = 0; i < boundaries_; ++i) {
    int64_t boundary = FirstSequence(i);
    if (boundary < before || boundary > sequences_ || (i == 0 && boundary != 0)) {
      return Malformed(index_.path(), at + 8 * i,
                       absl::StrCat("document boundary ", i, " is ", boundary,
                                    "; boundaries start at 0 and rise to ", sequences_));
    }
    before = boundary;
  }
  if (before != sequences_) {
    return Malformed(
        index_.path(), at + 8 * (boundaries_ - 1),
        absl::StrCat("the last document boundary is ", before, " instead of ", sequences_));
  }
  return absl::OkStatus();
}

int64_t IndexedDataset::SequenceLength(int64_t sequence) const {
  return Load<int32_t>(At(kHeaderBytes + 4 * sequence));
}

int64_t IndexedDataset::SequenceOffset(int64_t sequence) const {
  return Load<int64_t>(At(kHeaderBytes + 4 * sequences_ + 8 * sequence));
}

int64_t IndexedDataset::FirstSequence(int64_t document) const {
  return Load<int64_t>(At(kHeaderBytes + 12 * sequences_ + 8 * document));
}

absl::Status IndexedDataset::Read(int64_t sequence, int64_t offset, absl::Span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (sequence < 0 || sequence >= sequences_ || offset < 0 ||
      offset > SequenceLength(sequence) - count) {
    return absl::OutOfRangeError(
        absl::StrCat(prefix_, ": tokens [", offset, ", ", offset + count, ") of sequence ",
                     sequence, " of ", sequences_,
                     sequence >= 0 && sequence < sequences_
                         ? absl::StrCat(", which has ", SequenceLength(sequence), " tokens")
                         : std::string()));
  }
  const std::byte* from = bin_.bytes().data() + SequenceOffset(sequence) + offset * SizeOf(type_);
  if (Widen(type_, from, out) < vocab_size_) return absl::OkStatus();
  return ForeignToken(sequence, offset, count);
}

absl::Status IndexedDataset::ForeignToken(int64_t sequence, int64_t offset, int64_t count) const {
  const int64_t width = SizeOf(type_);
  const int64_t begin = SequenceOffset(sequence) + offset * width;  // bytes
  int64_t id = 0;
  int64_t i = 0;
  for (; i < count; ++i) {
    const std::byte* at = bin_.bytes().data() + begin + i * width;
    std::array<int32_t, 1> narrow{};
    const int64_t found = Widen(type_, at, absl::MakeSpan(narrow));
    id = type_ == TokenType::kI64 ? Load<int64_t>(at) : int64_t{narrow[0]};
    if (found >= vocab_size_) break;
  }
  int64_t document = 0;  // the last that begins at or before the sequence
  for (int64_t end = documents(); end - document > 1;) {
    const int64_t middle = document + (end - document) / 2;
    (FirstSequence(middle) <= sequence ? document : end) = middle;
  }
  int64_t position = offset + i;
  for (int64_t s = FirstSequence(document); s < sequence; ++s) position += SequenceLength(s);
  const std::string range = vocab_size_ == kAnyVocabulary
                                ? std::string("does not fit in 32 bits")
                                : absl::StrCat("is not in the vocabulary of ", vocab_size_,
                                               " tokens, 0 to ", vocab_size_ - 1);
  return Malformed(
      bin_.path(), begin + i * width,
      absl::StrCat("token id ", id, " at position ", position, " of document ", document, " ",
                   range, "; the file is damaged, or was made with another tokenizer"));
}

absl::StatusOr<IndexedDatasetWriter> IndexedDatasetWriter::Create(const std::string& prefix,
                                                                  TokenType type) {
  WEFT_ASSIGN_OR_RETURN(AtomicFile bin, AtomicFile::Create(prefix + ".bin"));
  return IndexedDatasetWriter(prefix, type, std::move(bin));
}

absl::Status IndexedDatasetWriter::AddDocument(absl::Span<const int32_t> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::OutOfRangeError(absl::StrCat(prefix_, ": document ", documents(), " has ",
                                              tokens.size(), " tokens; 2^31 - 1 is the most"));
  }
  int32_t misfit = 0;
  if (!Narrow(type_, tokens, encoded_, misfit)) {
    return absl::OutOfRangeError(absl::StrCat(prefix_, ": token ", misfit, " of document ",
                                              documents(), " does not fit in ", NameOf(type_)));
  }
  offsets_.push_back(bin_.size());
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  tokens_ += static_cast<int64_t>(tokens.size());
  return bin_.Append(encoded_);
}

absl::Status IndexedDatasetWriter::Commit() {
  WEFT_ASSIGN_OR_RETURN(AtomicFile index, AtomicFile::Create(prefix_ + ".idx"));
  auto put = [&index](const void* data, size_t size) {
    return index.Append(absl::MakeConstSpan(static_cast<const std::byte*>(data), size));
  };
  const uint64_t sequences = lengths_.size();
  const uint64_t boundaries = sequences + 1;
  WEFT_RETURN_IF_ERROR(put(kMagic, sizeof(kMagic)));
  WEFT_RETURN_IF_ERROR(put(&kVersion, sizeof(kVersion)));
  WEFT_RETURN_IF_ERROR(put(&type_, sizeof(type_)));
  WEFT_RETURN_IF_ERROR(put(&sequences, sizeof(sequences)));
  WEFT_RETURN_IF_ERROR(put(&boundaries, sizeof(boundaries)));
  WEFT_RETURN_IF_ERROR(put(lengths_.data(), lengths_.size() * sizeof(int32_t)));
  WEFT_RETURN_IF_ERROR(put(offsets_.data(), offsets_.size() * sizeof(int64_t)));
  for (uint64_t document = 0; document < boundaries; ++document) {
    WEFT_RETURN_IF_ERROR(put(&document, sizeof(document)));
  }
  // An old index must never stand beside new tokens.
  if (unlink((prefix_ + ".idx").c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("remove the old ", prefix_, ".idx"));
  }
  WEFT_RETURN_IF_ERROR(bin_.Commit());
  return index.Commit();
}

}  // namespace weft::train
