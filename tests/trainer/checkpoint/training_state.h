// A training state whose every element is known from (buffer, step, position), for any number of
// ranks, so that a checkpoint can be checked without what wrote it.
#ifndef WEFT_TESTS_TRAINER_CHECKPOINT_TRAINING_STATE_H_
#define WEFT_TESTS_TRAINER_CHECKPOINT_TRAINING_STATE_H_

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/writer.h"

namespace weft::train {

struct BufferKind {
  const char* name;
  DType dtype;
  int64_t elements;
};
// A byte-wide one in front, so that the writer has to reorder; one that no rank number divides.
inline constexpr BufferKind kBuffers[] = {{"mask", DType::kU8, 1001},
                                          {"parameters", DType::kF32, 30011},
                                          {"moment", DType::kBF16, 30011}};

inline std::byte ByteOf(const BufferKind& kind, int64_t step, int64_t byte) {
  uint64_t state =
      static_cast<uint64_t>(step * 1000003 + byte) ^ static_cast<uint64_t>(kind.name[0]);
  return static_cast<std::byte>(SplitMix64(state));
}

inline std::vector<std::byte> BytesOf(const BufferKind& kind, int64_t step, int64_t begin,
                                      int64_t end) {
  const int64_t width = SizeOf(kind.dtype);
  std::vector<std::byte> bytes;
  for (int64_t i = begin * width; i < end * width; ++i) bytes.push_back(ByteOf(kind, step, i));
  return bytes;
}

inline absl::Status WriteRank(CheckpointWriter& writer, int64_t step, int rank, int world_size) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<BufferPart> parts;
  for (const BufferKind& kind : kBuffers) {
    int64_t begin = kind.elements * rank / world_size;
    int64_t end = kind.elements * (rank + 1) / world_size;
    bytes.push_back(BytesOf(kind, step, begin, end));
    parts.push_back({kind.name, kind.dtype, kind.elements, begin, {}});
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].bytes = bytes[i];
  return writer.WriteShard(rank, parts);
}

inline CheckpointState StateAt(int64_t step) {
  CheckpointState state;
  state.samples_consumed = step * 32;
  state.seed = 7;
  state.states["scheduler"] = std::string("\0\x01\xFF", 3);
  state.config_text = "[train]\nsteps = 10\n";
  return state;
}

// What all ranks and the caller's barriers do together.
inline absl::Status WriteCheckpoint(const std::string& folder, int64_t step, int world_size,
                                    const ExchangeNames& exchange = ExchangeNamesByKernel) {
  CheckpointWriter writer(folder, step, world_size, exchange);
  for (int rank = 0; rank < world_size; ++rank) {
    WEFT_RETURN_IF_ERROR(WriteRank(writer, step, rank, world_size));
  }
  return writer.Commit(StateAt(step)).status();
}

// "" or the first difference from what WriteCheckpoint wrote.
inline std::string Compare(const CheckpointReader& reader, int64_t step) {
  if (reader.manifest().step != step) return absl::StrCat("step ", reader.manifest().step);
  if (reader.manifest().samples_consumed != step * 32) return "samples_consumed";
  for (const BufferKind& kind : kBuffers) {
    std::vector<std::byte> bytes(static_cast<size_t>(kind.elements * SizeOf(kind.dtype)));
    absl::Status status = reader.Read(kind.name, 0, kind.elements, absl::MakeSpan(bytes));
    if (!status.ok()) return std::string(status.message());
    if (bytes != BytesOf(kind, step, 0, kind.elements)) return kind.name;
  }
  return "";
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_CHECKPOINT_TRAINING_STATE_H_
