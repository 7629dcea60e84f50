// Reading a checkpoint, on any number of ranks: a range of a flat buffer is put together from
// whatever shards hold it.
//
//   WEFT_ASSIGN_OR_RETURN(auto checkpoint, CheckpointReader::Open(path));
//   WEFT_RETURN_IF_ERROR(checkpoint->Read("parameters", begin, end, bytes));
//
// No byte is given out before the checksum of its shard file has been verified. IsDamage tells a
// checkpoint that is broken from one that cannot be read at the moment.
#ifndef WEFT_TRAINER_CHECKPOINT_READER_H_
#define WEFT_TRAINER_CHECKPOINT_READER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/manifest.h"

namespace weft::train {

enum class Verification {
  kWhenTouched,  // at Open the manifest and all sizes; a shard's checksum when it is first read
  kEverything,   // at Open every byte
};

// Whether an error of a CheckpointReader says that files are wrong or missing, and so will be the
// next time. Otherwise the checkpoint may be whole: permission, an I/O error, too many open files,
// a format of a later version.
bool IsDamage(const absl::Status& status);

// Thread-safe.
class CheckpointReader {
 public:
  // Cancelled where `gives_up` while every byte is read.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& path, Verification verification = Verification::kWhenTouched,
      const std::atomic<bool>& gives_up = false);
  // Reads by a manifest that another rank has read, and whose files' sizes it has checked.
  static std::unique_ptr<CheckpointReader> With(std::string path, Manifest manifest);

  const Manifest& manifest() const { return manifest_; }
  const std::string& path() const { return path_; }

  // Elements [begin, end) into `out`, whose size must be theirs. NotFound names the buffers there
  // are; DataLoss the shard that is damaged.
  absl::Status Read(absl::string_view buffer, int64_t begin, int64_t end,
                    absl::Span<std::byte> out) const;
  // The runs of a range, one behind the other.
  absl::Status Read(absl::string_view buffer, const ElementRange& range,
                    absl::Span<std::byte> out) const;
  // For ranks that share the work of reading (read_plan.h): bytes of elements [begin, end) of the
  // tensor that a shard has of a buffer, which are to be held against BufferLayout::checksums by
  // whoever has read all of them. Where the manifest is older and has none, the shard is verified
  // first, as by Read.
  absl::Status ReadUnverified(int shard, const BufferLayout& buffer, int64_t begin, int64_t end,
                              absl::Span<std::byte> out) const;

 private:
  struct Shard {
    std::mutex mutex;
    bool opened = false;  // guarded by mutex, as the next two; both are fixed once it is true
    absl::Status status;
    std::unique_ptr<const SafetensorsFile> file;
    std::unique_ptr<const SafetensorsFile> unverified;  // guarded by mutex, fixed once it is there
  };

  CheckpointReader(std::string path, Manifest manifest);
  absl::StatusOr<const BufferLayout*> FindBuffer(absl::string_view name) const;
  absl::Status CheckSizes() const;
  std::string PathOf(const ShardInfo& shard) const;
  absl::StatusOr<const SafetensorsFile*> Touch(int shard,
                                               const std::atomic<bool>& gives_up = false) const;
  absl::StatusOr<const SafetensorsFile*> TouchUnverified(int shard) const;
  absl::Status OpenShard(const ShardInfo& info, Shard& shard,
                         const std::atomic<bool>& gives_up) const;

  const std::string path_;
  const Manifest manifest_;
  std::map<std::string, std::vector<BufferRun>, std::less<>> runs_;  // by buffer
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_READER_H_
