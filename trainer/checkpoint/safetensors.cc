#include "trainer/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/json_text.h"
#include "base/status.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignment = 8;
constexpr uint64_t kLongestHeader = 100'000'000;  // the reference implementation's bound
constexpr size_t kPiece = size_t{1} << 20;  // of a write: files/file.cc writes as much at once
constexpr char kMetadataKey[] = "__metadata__";

struct DTypeRow {
  DType dtype;
  absl::string_view name;
  int64_t size;
};
constexpr std::array kDTypes = {
    DTypeRow{DType::kBool, "BOOL", 1}, DTypeRow{DType::kU8, "U8", 1},
    DTypeRow{DType::kI8, "I8", 1},     DTypeRow{DType::kI16, "I16", 2},
    DTypeRow{DType::kU16, "U16", 2},   DTypeRow{DType::kF16, "F16", 2},
    DTypeRow{DType::kBF16, "BF16", 2}, DTypeRow{DType::kI32, "I32", 4},
    DTypeRow{DType::kU32, "U32", 4},   DTypeRow{DType::kF32, "F32", 4},
    DTypeRow{DType::kI64, "I64", 8},   DTypeRow{DType::kU64, "U64", 8},
    DTypeRow{DType::kF64, "F64", 8},
};

const DTypeRow& Row(DType dtype) {
  return *std::find_if(kDTypes.begin(), kDTypes.end(),
                       [dtype](const DTypeRow& row) { return row.dtype == dtype; });
}

// Bytes of a tensor; an error when a dimension is negative or the product does not fit.
absl::StatusOr<int64_t> ByteSize(const TensorSpec& tensor) {
  int64_t size = SizeOf(tensor.dtype);
  for (int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(size, extent, &size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor.name, "': its shape is not possible"));
    }
  }
  return size;
}

absl::Status Malformed(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

bool ToInteger(const Json& value, int64_t& out) {
  if (!value.is_number_unsigned()) return false;
  uint64_t number = value.get<uint64_t>();
  if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  out = static_cast<int64_t>(number);
  return true;
}

// One entry of the header, without regard to the others.
absl::Status ParseTensor(const std::string& path, const std::string& name, const Json& entry,
                         TensorInfo& tensor) {
  tensor.name = name;
  auto fail = [&](absl::string_view what) {
    return Malformed(path, absl::StrCat("tensor '", name, "': ", what));
  };
  if (!entry.is_object()) return fail("its entry is not an object");
  auto dtype = entry.find("dtype");
  auto shape = entry.find("shape");
  auto offsets = entry.find("data_offsets");
  if (dtype == entry.end() || shape == entry.end() || offsets == entry.end()) {
    return fail("dtype, shape or data_offsets is missing");
  }
  if (!dtype->is_string()) return fail("dtype is not a text");
  auto parsed = ParseDType(dtype->get_ref<const std::string&>());
  if (!parsed.ok()) return fail(parsed.status().message());
  tensor.dtype = *parsed;
  if (!shape->is_array()) return fail("shape is not a list");
  for (const Json& extent : *shape) {
    if (!ToInteger(extent, tensor.shape.emplace_back())) return fail("shape holds no such number");
  }
  if (!offsets->is_array() || offsets->size() != 2 || !ToInteger((*offsets)[0], tensor.begin) ||
      !ToInteger((*offsets)[1], tensor.end)) {
    return fail("data_offsets is not a pair of numbers");
  }
  auto size = ByteSize(tensor);
  if (!size.ok()) return fail("its shape is not possible");
  if (tensor.end < tensor.begin || tensor.end - tensor.begin != *size) {
    return fail(absl::StrCat("data_offsets [", tensor.begin, ", ", tensor.end, ") are not the ",
                             *size, " bytes that its shape takes"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t SizeOf(DType dtype) { return Row(dtype).size; }
absl::string_view NameOf(DType dtype) { return Row(dtype).name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("number type '", name, "' is not known"));
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path,
                                                            const std::vector<TensorSpec>& tensors,
                                                            const SafetensorsMetadata& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == kMetadataKey || header.contains(tensor.name)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor name '", tensor.name,
                                                     "' is empty, reserved or there twice"));
    }
    if (offset % SizeOf(tensor.dtype) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor '", tensor.name, "' would begin at byte ", offset,
                       ", which its type does not divide; put the tensors of wider types first"));
    }
    WEFT_ASSIGN_OR_RETURN(int64_t size, ByteSize(tensor));
    header[tensor.name] = {{"dtype", std::string(NameOf(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + size}}};
    offset += size;
  }
  std::string text = JsonText(header);
  text.append(static_cast<size_t>((kAlignment - static_cast<int64_t>(text.size())) & 7), ' ');
  if (text.size() > kLongestHeader) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a header of ", text.size(), " bytes; ",
                                                   kLongestHeader, " is the most"));
  }
  uint64_t length = text.size();
  std::string prefix(sizeof(length), '\0');
  std::memcpy(prefix.data(), &length, sizeof(length));
  WEFT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  SafetensorsWriter writer(std::move(file), offset);
  for (absl::string_view part : {absl::string_view(prefix), absl::string_view(text)}) {
    WEFT_RETURN_IF_ERROR(writer.file_.Append(part));
    writer.crc32c_ = Crc32c(part, writer.crc32c_);
  }
  return writer;
}

absl::Status SafetensorsWriter::Append(absl::Span<const std::byte> bytes) {
  return Write(bytes, /*is_checked=*/true);
}

absl::Status SafetensorsWriter::AppendUnchecked(absl::Span<const std::byte> bytes) {
  return Write(bytes, /*is_checked=*/false);
}

void SafetensorsWriter::AddChecksum(uint32_t crc32c, uint64_t bytes) {
  // The function gives the second part's checksum for the first's and that of both. It is a sum
  // over GF(2), its own inverse: for the first's and the second's it gives that of both.
  crc32c_ = Crc32cOfSecond(crc32c_, crc32c, bytes);
}

absl::Status SafetensorsWriter::Write(absl::Span<const std::byte> bytes, bool is_checked) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size > data_left_) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_.path(), ": ", size, " bytes more, but only ", data_left_, " belong to the tensors"));
  }
  data_left_ -= size;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    if (may_go_on_) WEFT_RETURN_IF_ERROR(may_go_on_());
    const absl::Span<const std::byte> piece = bytes.subspan(at, kPiece);
    // The piece is still in the cache when it is written.
    if (is_checked) crc32c_ = Crc32c(piece, crc32c_);
    WEFT_RETURN_IF_ERROR(file_.Append(piece));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Commit() {
  if (data_left_ != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(file_.path(), ": ", data_left_, " bytes of its tensors are missing"));
  }
  return file_.Commit();
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  SafetensorsFile file(std::move(mapped));
  WEFT_RETURN_IF_ERROR(file.Parse());
  return file;
}

absl::Status SafetensorsFile::Parse() {
  const std::string& path = file_.path();
  absl::Span<const std::byte> bytes = file_.bytes();
  if (bytes.size() < kLengthBytes) {
    return Malformed(path, absl::StrCat("has ", bytes.size(), " bytes; the header's length alone ",
                                        "takes 8: not a safetensors file, or truncated"));
  }
  uint64_t length;
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > kLongestHeader || length > bytes.size() - kLengthBytes) {
    return Malformed(path, absl::StrCat("a header of ", length, " bytes in a file of ",
                                        bytes.size(), ": not a safetensors file, or truncated"));
  }
  const char* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  data_start_ = kLengthBytes + static_cast<int64_t>(length);
  // Nothing may stand before the brace, as in the reference implementation.
  Json header =
      length > 0 && text[0] == '{' ? Json::parse(text, text + length, nullptr, false) : Json();
  if (!header.is_object()) return Malformed(path, "the header is not a JSON object");

  std::set<std::string> names;
  for (const auto& [name, entry] : header.items()) {
    if (!names.insert(name).second) return Malformed(path, absl::StrCat("'", name, "' twice"));
    if (name != kMetadataKey) {
      WEFT_RETURN_IF_ERROR(ParseTensor(path, name, entry, tensors_.emplace_back()));
      continue;
    }
    if (!entry.is_object()) return Malformed(path, "__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        return Malformed(path, absl::StrCat("metadata '", key, "' is not a text"));
      }
      metadata_[key] = value.get<std::string>();
    }
  }

  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t expected = 0;
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.begin != expected) {
      return Malformed(path,
                       absl::StrCat("tensor '", tensor.name, "' begins at byte ", tensor.begin,
                                    " of the data, but the one before it ends ", "at ", expected));
    }
    expected = tensor.end;
  }
  const int64_t data_size = static_cast<int64_t>(bytes.size()) - data_start_;
  if (expected != data_size) {
    return Malformed(path, absl::StrCat("the tensors take ", expected, " bytes, but the file has ",
                                        data_size, " of data"));
  }
  return absl::OkStatus();
}

const TensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  auto found = std::find_if(tensors_.begin(), tensors_.end(),
                            [name](const TensorInfo& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

absl::Span<const std::byte> SafetensorsFile::Data(const TensorInfo& tensor) const {
  return file_.bytes().subspan(static_cast<size_t>(data_start_ + tensor.begin),
                               static_cast<size_t>(tensor.end - tensor.begin));
}

}  // namespace weft::train
