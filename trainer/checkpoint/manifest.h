// manifest.json: what makes a folder of shard files a checkpoint. Written last, so a folder with a
// valid one is whole. docs/checkpoint-format.md describes the files; this is their form in memory.
//
// Training state is a set of flat buffers: one-dimensional arrays, one for each parameter of the
// whole model ("parameters.NAME") and each state of the optimizer's of it ("adam.mean.NAME"), cut
// over the ranks as the layout says. Ranges count elements; those of
// a matrix that is cut by columns are regular boxes: many runs, one a row.
#ifndef WEFT_TRAINER_CHECKPOINT_MANIFEST_H_
#define WEFT_TRAINER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/safetensors.h"

namespace weft::train {

// Version 1 had ranges of one run only, version 2 had neither shapes nor checksums of buffers; both
// are still read.
inline constexpr int kCheckpointVersion = 3;

struct ShardInfo {
  std::string file;  // name within the checkpoint's folder
  int64_t bytes = 0;
  uint32_t crc32c = 0;
};

// `count` runs of `length` elements of a buffer, at `begin`, `begin + stride`, ...
struct ElementRange {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t stride = 0;
  int64_t count = 1;
  int64_t elements() const { return length * count; }
  static ElementRange Run(int64_t begin, int64_t end) { return {begin, end - begin, 0, 1}; }
};

// A range of a buffer lies in shard number `shard`: one run behind the other, from element `at` of
// its tensor of the buffer's name.
struct BufferSlice {
  int shard = 0;
  int64_t at = 0;
  ElementRange range;
};

// A run of a slice: elements [begin, end) of the buffer.
struct BufferRun {
  int64_t begin = 0;
  int64_t end = 0;
  int shard = 0;
  int64_t at = 0;
};

struct BufferLayout {
  std::string name;
  DType dtype = DType::kF32;
  int64_t elements = 0;  // of the whole buffer
  std::vector<BufferSlice> slices;
  // The shape of the whole tensor that the buffer holds in row-major order. {elements}: the tensor
  // has no other, or the manifest is older (Manifest::HasShapes).
  std::vector<int64_t> shape;
  // CRC-32C of the tensor of the buffer's name in a shard, by the shard's number. They tell which
  // buffer of a damaged shard is damaged. Empty in older manifests.
  std::map<int, uint32_t> checksums;

  // By begin; of a valid layout they cover [0, elements) without gap or overlap.
  std::vector<BufferRun> Runs() const;
};

struct Manifest {
  int version = kCheckpointVersion;  // of the file that it was read from
  int64_t step = 0;
  int64_t samples_consumed = 0;  // over all ranks: position in the data
  uint64_t seed = 0;
  int world_size = 0;
  std::string config_hash;                    // HashConfig of the run's config
  std::map<std::string, std::string> states;  // any bytes, by name; the same for all ranks
  std::vector<ShardInfo> shards;              // one a rank
  std::vector<BufferLayout> buffers;

  const BufferLayout* Find(absl::string_view buffer) const;  // nullptr: none
  bool HasShapes() const { return version >= 3; }
};

// With a checksum of its own.
std::string ToJson(const Manifest& manifest);
// DataLoss when it is damaged, of another version, or its layout leaves a gap. `path` for messages.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text, const std::string& path);
// The manifest in the folder of a checkpoint. Where it cannot be read, the error says that
// `checkpoint` is none, and why; else as ParseManifest. `bytes`, unless null: the file, where it
// could be read.
absl::StatusOr<Manifest> ReadManifest(const std::string& checkpoint, std::string* bytes = nullptr);
// Checks that the slices of each buffer cover it once, and that its shape has as many elements.
// Used by both ways.
absl::Status CheckManifestLayout(const Manifest& manifest);

// Elements of a tensor of that shape; -1 where an extent is negative or the product does not fit.
int64_t ElementsOf(absl::Span<const int64_t> shape);

// 16 hexadecimal digits of FNV-1a; says whether two runs had the same config text.
std::string HashConfig(absl::string_view config_text);

// Names within a folder of checkpoints.
std::string CheckpointName(int64_t step);           // "step-00001000"
std::string TemporaryCheckpointName(int64_t step);  // ".tmp-step-00001000"
std::string ReplacedCheckpointName(int64_t step);   // ".replaced-step-00001000"
std::string ShardName(int rank, int world_size);    // "rank-00003-of-00008.safetensors"
bool ParseCheckpointName(absl::string_view name, int64_t& step);
inline constexpr char kManifestName[] = "manifest.json";

}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_MANIFEST_H_
