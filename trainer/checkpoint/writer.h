// Writing a checkpoint so that it is there as a whole or not at all, whatever dies and when.
//
//   every rank   writer.WriteShard(rank, parts)    its part, synced, into ".tmp-step-00001000/"
//   the caller   barrier; were all ranks well?     (the collectives' business, not done here)
//   rank 0       writer.Commit(state)               checks, writes manifest.json, syncs, renames to
//                                                   "step-00001000/", syncs the folder above
//   rank 0       if some rank failed: writer.Abandon()
//   the caller   barrier; old checkpoints may go (retention.h)
//
// The folder is on a file system that all ranks share. Errors name the file and the reason, a full
// disk among them; older checkpoints are untouched. Used by one thread at a time; each rank has its
// own writer, and different steps may be written at the same time.
#ifndef WEFT_TRAINER_CHECKPOINT_WRITER_H_
#define WEFT_TRAINER_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/read_file.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save_times.h"

namespace weft::train {

// This rank's elements of a flat buffer, one part a buffer. Over all ranks, the parts of a buffer
// cover it once; of elements that several ranks hold alike, each may give some.
struct BufferPart {
  std::string name;
  DType dtype = DType::kF32;
  int64_t elements = 0;               // of the whole buffer, the same on every rank
  int64_t begin = 0;                  // first element of `bytes`
  absl::Span<const std::byte> bytes;  // a multiple of the element's size; may be empty
  // Where the elements of `bytes` lie, one range behind the other. Empty: consecutive from `begin`.
  std::vector<ElementRange> ranges;
  // The whole tensor's shape, the same on every rank. Empty: {elements}.
  std::vector<int64_t> shape;
};

// What is the same on every rank.
struct CheckpointState {
  int64_t samples_consumed = 0;
  uint64_t seed = 0;
  std::map<std::string, std::string> states;  // any bytes, by name
  std::string config_text;                    // only its hash is kept
};

// Gives each of two folders the other's name in one step; 0, or -1 and errno. EINVAL, ENOSYS and
// EOPNOTSUPP: the file system cannot (NFS is one).
using ExchangeNames = std::function<int(const std::string&, const std::string&)>;
int ExchangeNamesByKernel(const std::string& one, const std::string& other);  // renameat2

class CheckpointWriter {
 public:
  // `folder` holds the run's checkpoints; it is created when it is missing.
  CheckpointWriter(std::string folder, int64_t step, int world_size,
                   ExchangeNames exchange = ExchangeNamesByKernel);

  // Checksums are computed by another thread while this one writes: sooner done where a core is
  // idle, else one more pass over memory.
  void set_checksums_beside(bool beside) { checksums_beside_ = beside; }
  // Asked before each mebibyte of a shard, and before that is synced: where it says true,
  // WriteShard is Cancelled and leaves no part of the shard. Null: a shard is written to its end.
  void set_gives_up(std::function<bool()> gives_up) { gives_up_ = std::move(gives_up); }
  // Where time goes from now on; null: it is not measured. `times` outlives this object.
  void set_times(SaveTimes* times) { times_ = times; }

  absl::Status WriteShard(int rank, absl::Span<const BufferPart> parts);
  // The path of the checkpoint. An earlier checkpoint of the same step is replaced: at every
  // moment the old one or the new one can be found (FindLatest).
  absl::StatusOr<std::string> Commit(const CheckpointState& state);
  // For shards that are not all in one folder: what WriteShard has noted of this rank's, and the
  // manifest of the notes of all ranks, which may then go to CommitCopy of each folder.
  absl::StatusOr<std::string> Note(int rank) const { return ReadFile(NotePath(rank)); }
  absl::StatusOr<Manifest> MakeManifest(absl::Span<const std::string> notes,
                                        const CheckpointState& state) const;
  // The same for shards that were not written here but copied, under the names of `manifest`, into
  // the temporary folder.
  absl::StatusOr<std::string> CommitCopy(const Manifest& manifest);
  const std::string& temporary() const { return temporary_; }
  // Takes away what was written, to free the disk. Nobody may be writing any more.
  void Abandon();

 private:
  using Checksums = std::map<const BufferPart*, uint32_t>;
  absl::StatusOr<Checksums> WriteParts(const std::vector<const BufferPart*>& order,
                                       SafetensorsWriter& file) const;
  absl::Status CheckParts(int rank, absl::Span<const BufferPart> parts) const;
  absl::Status MayGoOn() const;  // Cancelled where gives_up_ says true
  absl::StatusOr<Manifest> Gather() const;
  absl::Status AddShard(int rank, Manifest& manifest) const;
  absl::Status AddNote(int rank, const std::string& text, Manifest& manifest) const;
  absl::Status RemoveUnlisted(const Manifest& manifest) const;
  absl::Status Publish() const;
  absl::Status ReplaceInTwoRenames() const;
  std::string NotePath(int rank) const;

  const std::string folder_;
  const int64_t step_;
  const int world_size_;
  const std::string temporary_;
  const std::string final_;
  const std::string replaced_;
  const ExchangeNames exchange_;
  SaveTimes* times_ = nullptr;
  std::function<bool()> gives_up_;
  bool checksums_beside_ = false;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_WRITER_H_
