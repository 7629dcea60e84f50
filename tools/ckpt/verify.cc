#include "tools/ckpt/verify.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/files/file.h"

namespace weft::ckpt {
namespace {

using train::BufferLayout;
using train::SafetensorsFile;
using train::ShardInfo;
using train::TensorInfo;

std::string Hex(uint32_t checksum) { return absl::StrFormat("checksum %08x", checksum); }

// Elements of a buffer that its slices in a shard take, up to the end of the last.
int64_t ElementsIn(const BufferLayout& buffer, int shard) {
  int64_t end = 0;
  for (const train::BufferSlice& slice : buffer.slices) {
    if (slice.shard == shard) end = std::max(end, slice.at + slice.range.elements());
  }
  return end;
}

class Verifier {
 public:
  Verifier(std::string path, train::Manifest manifest) : path_(std::move(path)) {
    result_.manifest = std::move(manifest);
  }

  Verification Run(bool read_all) {
    for (int shard = 0; shard < result_.manifest.world_size; ++shard) CheckShard(shard, read_all);
    return std::move(result_);
  }

 private:
  void Add(const std::string& file, const std::string& buffer, std::string expected,
           std::string found) {
    result_.faults.push_back({file, buffer, std::move(expected), std::move(found)});
  }

  void CheckShard(int number, bool read_all) {
    const ShardInfo& shard = result_.manifest.shards[static_cast<size_t>(number)];
    const std::string path = absl::StrCat(path_, "/", shard.file);
    const std::string expected = absl::StrCat(shard.bytes, " bytes");
    std::error_code error;
    const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) return Add(shard.file, "", expected, error.message());
    if (size != shard.bytes) return Add(shard.file, "", expected, absl::StrCat(size, " bytes"));
    if (!read_all) return;
    uint32_t checksum = 0;
    const absl::Status read = train::ReadInChunks(
        path, [&](absl::Span<const std::byte> bytes) { checksum = Crc32c(bytes, checksum); });
    if (!read.ok()) return Add(shard.file, "", expected, std::string(read.message()));
    result_.bytes += size;
    const bool is_damaged = checksum != shard.crc32c;
    if (is_damaged) Add(shard.file, "", Hex(shard.crc32c), Hex(checksum));
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (!file.ok()) {
      return Add(shard.file, "", "a safetensors file", std::string(file.status().message()));
    }
    for (const BufferLayout& buffer : result_.manifest.buffers) {
      CheckBuffer(*file, shard.file, number, buffer, is_damaged);
    }
  }

  void CheckBuffer(const SafetensorsFile& file, const std::string& name, int shard,
                   const BufferLayout& buffer, bool is_damaged) {
    const int64_t elements = ElementsIn(buffer, shard);
    if (elements == 0) return;
    ++result_.tensors;
    const TensorInfo* tensor = file.Find(buffer.name);
    const std::string expected = absl::StrCat(elements, " x ", train::NameOf(buffer.dtype));
    if (tensor == nullptr) return Add(name, buffer.name, expected, "no such tensor");
    const int64_t found = (tensor->end - tensor->begin) / train::SizeOf(tensor->dtype);
    if (tensor->dtype != buffer.dtype || found < elements) {
      return Add(name, buffer.name, expected,
                 absl::StrCat(found, " x ", train::NameOf(tensor->dtype)));
    }
    // Which of them it is: where the file as a whole is right, so are they.
    const auto checksum = buffer.checksums.find(shard);
    if (!is_damaged || checksum == buffer.checksums.end()) return;
    const uint32_t actual = Crc32c(file.Data(*tensor));
    if (actual != checksum->second) Add(name, buffer.name, Hex(checksum->second), Hex(actual));
  }

  const std::string path_;
  Verification result_;
};

}  // namespace

std::string Fault::Text() const {
  return absl::StrCat(file, buffer.empty() ? "" : absl::StrCat(", buffer '", buffer, "'"), ": ",
                      expected, " expected, ", found, " found");
}

absl::StatusOr<Verification> Verify(const std::string& checkpoint, bool read_all) {
  WEFT_ASSIGN_OR_RETURN(train::Manifest manifest, train::ReadManifest(checkpoint));
  return Verifier(checkpoint, std::move(manifest)).Run(read_all);
}

}  // namespace weft::ckpt
