// safetensors files (github.com/huggingface/safetensors): named arrays that every framework reads.
//
//   u64 little endian N | N bytes of JSON, padded with spaces to a multiple of 8 | data
//   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end)}, ...,
//          "__metadata__": {"key": "text"}}, offsets from the first byte of data, no holes,
//          no overlap
//
// The writer streams, so a file of any size needs no memory; the reader maps the file and checks
// all of the header, so that every span it gives lies within the file.
#ifndef WEFT_TRAINER_CHECKPOINT_SAFETENSORS_H_
#define WEFT_TRAINER_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/files/file.h"

namespace weft::train {

// The format's number types; the names are what NameOf gives.
enum class DType { kBool, kU8, kI8, kI16, kU16, kF16, kBF16, kI32, kU32, kF32, kI64, kU64, kF64 };

int64_t SizeOf(DType dtype);            // bytes of one element
absl::string_view NameOf(DType dtype);  // "BF16"
absl::StatusOr<DType> ParseDType(absl::string_view name);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // {}: a single element
};

struct TensorInfo : TensorSpec {
  int64_t begin = 0;  // bytes, from the start of the data
  int64_t end = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

class SafetensorsWriter {
 public:
  // The tensors in the order in which their bytes will come. Each must begin at a multiple of its
  // element's size, which they do when wide types come first; InvalidArgument otherwise.
  static absl::StatusOr<SafetensorsWriter> Create(const std::string& path,
                                                  const std::vector<TensorSpec>& tensors,
                                                  const SafetensorsMetadata& metadata = {});
  // Asked before each mebibyte that Append and AppendUnchecked write: an error ends the call, which
  // returns it; the file is then of no use. Null: nothing is asked.
  void set_may_go_on(std::function<absl::Status()> may_go_on) { may_go_on_ = std::move(may_go_on); }
  // The next bytes; a call may have any number of them.
  absl::Status Append(absl::Span<const std::byte> bytes);
  // As Append, but the checksum of the bytes is added afterwards by AddChecksum, in the order of
  // the bytes: another thread may compute it meanwhile.
  absl::Status AppendUnchecked(absl::Span<const std::byte> bytes);
  void AddChecksum(uint32_t crc32c, uint64_t bytes);
  // FailedPrecondition when bytes are missing. Durable, then visible under its name.
  absl::Status Commit();

  int64_t file_size() const { return file_.size(); }
  uint32_t file_crc32c() const { return crc32c_; }  // of all bytes so far, header included

 private:
  absl::Status Write(absl::Span<const std::byte> bytes, bool is_checked);
  SafetensorsWriter(AtomicFile file, int64_t data_size)
      : file_(std::move(file)), data_left_(data_size) {}
  AtomicFile file_;
  int64_t data_left_;  // bytes
  uint32_t crc32c_ = 0;
  std::function<absl::Status()> may_go_on_;
};

// Const use is thread-safe. Spans live as long as the object.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // by position in the file
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const TensorInfo* Find(absl::string_view name) const;  // nullptr: no such tensor
  absl::Span<const std::byte> Data(const TensorInfo& tensor) const;
  const std::string& path() const { return file_.path(); }
  int64_t data_start() const { return data_start_; }  // of the file's data, in bytes

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  absl::Status Parse();

  MappedFile file_;
  int64_t data_start_ = 0;
  std::vector<TensorInfo> tensors_;
  SafetensorsMetadata metadata_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_SAFETENSORS_H_
