#include "trainer/checkpoint/reader.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft::train {

bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status);
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& path, Verification verification, const std::atomic<bool>& gives_up) {
  WEFT_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(path));
  std::unique_ptr<CheckpointReader> reader(new CheckpointReader(path, std::move(manifest)));
  WEFT_RETURN_IF_ERROR(reader->CheckSizes());
  if (verification == Verification::kEverything) {
    for (int shard = 0; shard < reader->manifest_.world_size; ++shard) {
      WEFT_RETURN_IF_ERROR(reader->Touch(shard, gives_up).status());
    }
  }
  return reader;
}

std::unique_ptr<CheckpointReader> CheckpointReader::With(std::string path, Manifest manifest) {
  return std::unique_ptr<CheckpointReader>(
      new CheckpointReader(std::move(path), std::move(manifest)));
}

std::string CheckpointReader::PathOf(const ShardInfo& shard) const {
  return absl::StrCat(path_, "/", shard.file);
}

CheckpointReader::CheckpointReader(std::string path, Manifest manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {
  for (size_t i = 0; i < manifest_.shards.size(); ++i) shards_.push_back(std::make_unique<Shard>());
  for (const BufferLayout& buffer : manifest_.buffers) runs_[buffer.name] = buffer.Runs();
}

absl::Status CheckpointReader::CheckSizes() const {
  for (const ShardInfo& shard : manifest_.shards) {
    const std::string path = PathOf(shard);
    std::error_code error;
    auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) return ErrnoStatus(error.value(), absl::StrCat("size of ", path));
    if (size != shard.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", size, " bytes instead of ", shard.bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::OpenShard(const ShardInfo& info, Shard& shard,
                                         const std::atomic<bool>& gives_up) const {
  const std::string path = PathOf(info);
  uint32_t actual = 0;
  WEFT_RETURN_IF_ERROR(ReadInChunks(
      path, [&](absl::Span<const std::byte> bytes) { actual = Crc32c(bytes, actual); }, gives_up));
  if (actual != info.crc32c) {
    return absl::DataLossError(absl::StrFormat(
        "%s is damaged: its checksum is %08x instead of %08x", path, actual, info.crc32c));
  }
  WEFT_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  shard.file = std::make_unique<const SafetensorsFile>(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<const SafetensorsFile*> CheckpointReader::Touch(
    int number, const std::atomic<bool>& gives_up) const {
  Shard& shard = *shards_[static_cast<size_t>(number)];
  std::lock_guard lock(shard.mutex);
  if (!shard.opened) {
    shard.status = OpenShard(manifest_.shards[static_cast<size_t>(number)], shard, gives_up);
    shard.opened = true;
  }
  if (!shard.status.ok()) return shard.status;
  return shard.file.get();
}

absl::StatusOr<const SafetensorsFile*> CheckpointReader::TouchUnverified(int number) const {
  Shard& shard = *shards_[static_cast<size_t>(number)];
  std::lock_guard lock(shard.mutex);
  if (shard.unverified == nullptr) {
    WEFT_ASSIGN_OR_RETURN(
        SafetensorsFile file,
        SafetensorsFile::Open(PathOf(manifest_.shards[static_cast<size_t>(number)])));
    shard.unverified = std::make_unique<const SafetensorsFile>(std::move(file));
  }
  return shard.unverified.get();
}

absl::StatusOr<const BufferLayout*> CheckpointReader::FindBuffer(absl::string_view name) const {
  const BufferLayout* buffer = manifest_.Find(name);
  if (buffer != nullptr) return buffer;
  std::string names;
  for (const BufferLayout& known : manifest_.buffers) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", known.name);
  }
  return absl::NotFoundError(absl::StrCat(path_, " has no buffer '", name, "'; it has ", names));
}

absl::Status CheckpointReader::Read(absl::string_view name, const ElementRange& range,
                                    absl::Span<std::byte> out) const {
  WEFT_ASSIGN_OR_RETURN(const BufferLayout* buffer, FindBuffer(name));
  const size_t bytes = static_cast<size_t>(range.length * SizeOf(buffer->dtype));
  if (out.size() != bytes * static_cast<size_t>(range.count)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", range.count, " x ", range.length,
                                                   " elements of buffer '", name, "' into ",
                                                   out.size(), " bytes"));
  }
  for (int64_t run = 0; run < range.count; ++run) {
    const int64_t begin = range.begin + run * range.stride;
    WEFT_RETURN_IF_ERROR(Read(name, begin, begin + range.length,
                              out.subspan(static_cast<size_t>(run) * bytes, bytes)));
  }
  return absl::OkStatus();
}

// The tensor that a file has of a buffer, which must have so many elements at least.
static absl::StatusOr<const TensorInfo*> FindTensor(const SafetensorsFile& file,
                                                    const BufferLayout& buffer, int64_t elements) {
  const TensorInfo* tensor = file.Find(buffer.name);
  if (tensor == nullptr || tensor->dtype != buffer.dtype ||
      tensor->end - tensor->begin < elements * SizeOf(buffer.dtype)) {
    return absl::DataLossError(
        absl::StrCat(file.path(), ": tensor '", buffer.name, "' is not what the manifest says"));
  }
  return tensor;
}

absl::Status CheckpointReader::ReadUnverified(int shard, const BufferLayout& buffer, int64_t begin,
                                              int64_t end, absl::Span<std::byte> out) const {
  WEFT_ASSIGN_OR_RETURN(const SafetensorsFile* file,
                        buffer.checksums.count(shard) > 0 ? TouchUnverified(shard) : Touch(shard));
  WEFT_ASSIGN_OR_RETURN(const TensorInfo* tensor, FindTensor(*file, buffer, end));
  const int64_t width = SizeOf(buffer.dtype);
  if (begin < 0 || end < begin || static_cast<int64_t>(out.size()) != (end - begin) * width) {
    return absl::InvalidArgumentError(absl::StrCat(file->path(), ": elements [", begin, ", ", end,
                                                   ") of tensor '", buffer.name, "' into ",
                                                   out.size(), " bytes"));
  }
  return ReadAt(file->path(), file->data_start() + tensor->begin + begin * width, out);
}

absl::Status CheckpointReader::Read(absl::string_view name, int64_t begin, int64_t end,
                                    absl::Span<std::byte> out) const {
  WEFT_ASSIGN_OR_RETURN(const BufferLayout* buffer, FindBuffer(name));
  const int64_t width = SizeOf(buffer->dtype);
  if (begin < 0 || end < begin || end > buffer->elements ||
      static_cast<int64_t>(out.size()) != (end - begin) * width) {
    return absl::InvalidArgumentError(absl::StrCat(
        path_, ": elements [", begin, ", ", end, ") of buffer '", name, "', which has ",
        buffer->elements, " of ", width, " bytes, into ", out.size(), " bytes"));
  }
  const std::vector<BufferRun>& runs = runs_.find(buffer->name)->second;
  auto run = std::partition_point(runs.begin(), runs.end(),
                                  [begin](const BufferRun& r) { return r.end <= begin; });
  for (int64_t at = begin; at < end; ++run) {
    WEFT_ASSIGN_OR_RETURN(const SafetensorsFile* file, Touch(run->shard));
    WEFT_ASSIGN_OR_RETURN(const TensorInfo* tensor,
                          FindTensor(*file, *buffer, run->at + run->end - run->begin));
    const int64_t stop = std::min(end, run->end);
    std::memcpy(out.data() + (at - begin) * width,
                file->Data(*tensor).data() + (run->at + at - run->begin) * width,
                static_cast<size_t>((stop - at) * width));
    at = stop;
  }
  return absl::OkStatus();
}

}  // namespace weft::train
