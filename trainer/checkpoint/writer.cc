#include "trainer/checkpoint/writer.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

int64_t Count(const BufferPart& part) {
  return static_cast<int64_t>(part.bytes.size()) / SizeOf(part.dtype);
}

// Ranges that hold no element have no place in the layout.
std::vector<ElementRange> RangesOf(const BufferPart& part) {
  if (!part.ranges.empty() || Count(part) == 0) return part.ranges;
  return {ElementRange::Run(part.begin, part.begin + Count(part))};
}

std::vector<int64_t> ShapeOf(const BufferPart& part) {
  return part.shape.empty() ? std::vector<int64_t>{part.elements} : part.shape;
}

// The tensors of a shard: buffers by falling width of their numbers, so that all are aligned, then
// the rank's states.
std::vector<const BufferPart*> ByWidth(absl::Span<const BufferPart> parts) {
  std::vector<const BufferPart*> order;
  order.reserve(parts.size());
  for (const BufferPart& part : parts) order.push_back(&part);
  std::stable_sort(order.begin(), order.end(), [](const BufferPart* a, const BufferPart* b) {
    return SizeOf(a->dtype) > SizeOf(b->dtype);
  });
  return order;
}

// What rank 0 must know of a shard to write the manifest. Lies beside it until Commit.
Json MakeNote(int64_t step, const SafetensorsWriter& file, absl::Span<const BufferPart> parts,
              const std::map<const BufferPart*, uint32_t>& checksums) {
  Json buffers = Json::array();
  for (const BufferPart& part : parts) {
    Json ranges = Json::array();
    for (const ElementRange& range : RangesOf(part)) {
      ranges.push_back({range.begin, range.length, range.stride, range.count});
    }
    buffers.push_back({{"name", part.name},
                       {"dtype", static_cast<int>(part.dtype)},
                       {"elements", part.elements},
                       {"shape", ShapeOf(part)},
                       {"crc32c", checksums.at(&part)},
                       {"ranges", std::move(ranges)}});
  }
  return {{"step", step},
          {"bytes", file.file_size()},
          {"crc32c", file.file_crc32c()},
          {"buffers", std::move(buffers)}};
}

void AddState(const CheckpointState& state, Manifest& manifest) {
  manifest.samples_consumed = state.samples_consumed;
  manifest.seed = state.seed;
  manifest.states = state.states;
  manifest.config_hash = HashConfig(state.config_text);
}

}  // namespace

int ExchangeNamesByKernel(const std::string& one, const std::string& other) {
  return renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
}

CheckpointWriter::CheckpointWriter(std::string folder, int64_t step, int world_size,
                                   ExchangeNames exchange)
    : folder_(std::move(folder)),
      step_(step),
      world_size_(world_size),
      temporary_(absl::StrCat(folder_, "/", TemporaryCheckpointName(step))),
      final_(absl::StrCat(folder_, "/", CheckpointName(step))),
      replaced_(absl::StrCat(folder_, "/", ReplacedCheckpointName(step))),
      exchange_(std::move(exchange)) {
  WEFT_CHECK(step >= 0 && world_size > 0, "step " << step << ", " << world_size << " ranks");
}

std::string CheckpointWriter::NotePath(int rank) const {
  return absl::StrCat(temporary_, "/", ShardName(rank, world_size_), ".json");
}

absl::Status CheckpointWriter::CheckParts(int rank, absl::Span<const BufferPart> parts) const {
  if (rank < 0 || rank >= world_size_) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " of ", world_size_));
  }
  for (const BufferPart& part : parts) {
    bool whole = static_cast<int64_t>(part.bytes.size()) % SizeOf(part.dtype) == 0;
    int64_t in_ranges = 0, end = 0;
    for (const ElementRange& range : RangesOf(part)) {
      in_ranges += range.elements();
      end = std::max(end, range.begin + (range.count - 1) * range.stride + range.length);
    }
    if (!whole || part.begin < 0 || in_ranges != Count(part) || end > part.elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer '", part.name, "': ", part.bytes.size(), " bytes of ",
                       NameOf(part.dtype), " at element ", part.begin, " of ", part.elements));
    }
    if (ElementsOf(ShapeOf(part)) != part.elements) {
      return absl::InvalidArgumentError(absl::StrCat("buffer '", part.name, "' of ", part.elements,
                                                     " elements: its shape is [",
                                                     absl::StrJoin(part.shape, ", "), "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::WriteShard(int rank, absl::Span<const BufferPart> parts) {
  WEFT_RETURN_IF_ERROR(CheckParts(rank, parts));
  WEFT_RETURN_IF_ERROR(MakeFolders(temporary_));
  // A note of an earlier try must not vouch for a shard that this one fails to write.
  if (unlink(NotePath(rank).c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("remove ", NotePath(rank)));
  }
  std::vector<const BufferPart*> order = ByWidth(parts);
  std::vector<TensorSpec> tensors;
  tensors.reserve(order.size());
  for (const BufferPart* part : order) {
    tensors.push_back({part->name, part->dtype, {Count(*part)}});
  }
  SafetensorsMetadata metadata = {{"format", "weft-checkpoint-shard"},
                                  {"step", absl::StrCat(step_)},
                                  {"rank", absl::StrCat(rank)},
                                  {"world_size", absl::StrCat(world_size_)}};
  WEFT_ASSIGN_OR_RETURN(
      SafetensorsWriter file,
      SafetensorsWriter::Create(absl::StrCat(temporary_, "/", ShardName(rank, world_size_)),
                                tensors, metadata));
  file.set_may_go_on([this] { return MayGoOn(); });
  Checksums checksums;
  {
    const SaveTimes::Scope scope(times_, SavePhase::kWrite);
    WEFT_ASSIGN_OR_RETURN(checksums, WriteParts(order, file));
  }
  WEFT_RETURN_IF_ERROR(MayGoOn());
  const SaveTimes::Scope scope(times_, SavePhase::kSync);
  WEFT_RETURN_IF_ERROR(file.Commit());
  // For the commit, which happens in the life of this process or not at all.
  return WriteFileAtomically(NotePath(rank), MakeNote(step_, file, parts, checksums).dump(),
                             Durability::kNone);
}

absl::Status CheckpointWriter::MayGoOn() const {
  if (gives_up_ == nullptr || !gives_up_()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("write ", temporary_, ": given up"));
}

absl::StatusOr<CheckpointWriter::Checksums> CheckpointWriter::WriteParts(
    const std::vector<const BufferPart*>& order, SafetensorsWriter& file) const {
  Checksums checksums;
  if (!checksums_beside_) {
    // Each byte is read for its checksum once, on its way to the file: what a buffer has added to
    // the file's is the buffer's.
    for (const BufferPart* part : order) {
      const uint32_t before = file.file_crc32c();
      WEFT_RETURN_IF_ERROR(file.Append(part->bytes));
      checksums[part] = Crc32cOfSecond(before, file.file_crc32c(), part->bytes.size());
    }
    return checksums;
  }
  std::atomic<bool> has_failed = false;  // then nobody wants the checksums
  std::future<void> computed = StartUnbound([&] {
    for (const BufferPart* part : order) {
      if (has_failed.load()) return;
      checksums[part] = Crc32c(part->bytes);
    }
  });
  absl::Status status;
  for (size_t i = 0; i < order.size() && status.ok(); ++i) {
    status = file.AppendUnchecked(order[i]->bytes);
  }
  has_failed.store(!status.ok());
  computed.get();
  WEFT_RETURN_IF_ERROR(status);
  for (const BufferPart* part : order) file.AddChecksum(checksums[part], part->bytes.size());
  return checksums;
}

absl::Status CheckpointWriter::AddShard(int rank, Manifest& manifest) const {
  auto text = Note(rank);
  if (!text.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " wrote no shard of step ",
                                                      step_, ": ", text.status().message()));
  }
  WEFT_RETURN_IF_ERROR(AddNote(rank, *text, manifest));
  const ShardInfo& shard = manifest.shards.back();
  std::error_code error;
  const std::string path = absl::StrCat(temporary_, "/", shard.file);
  auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || size != shard.bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", error ? error.message() : absl::StrCat(size, " bytes"),
                     " instead of the ", shard.bytes, " that rank ", rank, " wrote"));
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::AddNote(int rank, const std::string& text,
                                       Manifest& manifest) const {
  // Written by this library moments ago; a wrong form is our own fault, a wrong step is not.
  Json note = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  WEFT_CHECK(note.is_object(), "note of rank " << rank << " is " << text);
  manifest.shards.push_back(
      {ShardName(rank, world_size_), note["bytes"].get<int64_t>(), note["crc32c"].get<uint32_t>()});
  for (const Json& entry : note["buffers"]) {
    BufferLayout part{
        entry["name"].get<std::string>(),           static_cast<DType>(entry["dtype"].get<int>()),
        entry["elements"].get<int64_t>(),           {},
        entry["shape"].get<std::vector<int64_t>>(), {{rank, entry["crc32c"].get<uint32_t>()}}};
    int64_t at = 0;
    for (const Json& range : entry["ranges"]) {
      BufferSlice slice{rank,
                        at,
                        {range[0].get<int64_t>(), range[1].get<int64_t>(), range[2].get<int64_t>(),
                         range[3].get<int64_t>()}};
      at += slice.range.elements();
      part.slices.push_back(slice);
    }
    auto whole = std::find_if(manifest.buffers.begin(), manifest.buffers.end(),
                              [&](const BufferLayout& b) { return b.name == part.name; });
    if (whole == manifest.buffers.end()) {
      manifest.buffers.push_back(std::move(part));
    } else if (whole->dtype != part.dtype || whole->elements != part.elements) {
      return absl::InvalidArgumentError(absl::StrCat(
          "buffer '", part.name, "' is ", part.elements, " x ", NameOf(part.dtype), " on rank ",
          rank, ", but ", whole->elements, " x ", NameOf(whole->dtype), " on a rank before"));
    } else if (whole->shape != part.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "buffer '", part.name, "' has the shape [", absl::StrJoin(part.shape, ", "), "] on rank ",
          rank, ", but [", absl::StrJoin(whole->shape, ", "), "] on a rank before"));
    } else {
      whole->checksums.merge(part.checksums);
      whole->slices.insert(whole->slices.end(), part.slices.begin(), part.slices.end());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> CheckpointWriter::Gather() const {
  Manifest manifest;
  manifest.step = step_;
  manifest.world_size = world_size_;
  for (int rank = 0; rank < world_size_; ++rank) {
    WEFT_RETURN_IF_ERROR(AddShard(rank, manifest));
  }
  WEFT_RETURN_IF_ERROR(CheckManifestLayout(manifest));
  return manifest;
}

// Removes what the manifest does not list: notes, and files of an earlier try with another number
// of ranks.
absl::Status CheckpointWriter::RemoveUnlisted(const Manifest& manifest) const {
  std::set<std::string> listed;
  for (const ShardInfo& shard : manifest.shards) listed.insert(shard.file);
  std::error_code error;
  std::vector<std::filesystem::path> unlisted;
  for (auto entry = std::filesystem::directory_iterator(temporary_, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (listed.count(entry->path().filename().string()) == 0) unlisted.push_back(entry->path());
  }
  for (const auto& path : unlisted) {
    if (!error) std::filesystem::remove_all(path, error);
  }
  return error ? ErrnoStatus(error.value(), absl::StrCat("tidy ", temporary_)) : absl::OkStatus();
}

// Between the two renames only `replaced_` is there: FindLatest takes it for the step's checkpoint.
absl::Status CheckpointWriter::ReplaceInTwoRenames() const {
  WEFT_RETURN_IF_ERROR(RemoveTree(replaced_));  // of an earlier try: `final_` is there
  if (rename(final_.c_str(), replaced_.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename ", final_, " to ", replaced_));
  }
  if (rename(temporary_.c_str(), final_.c_str()) == 0) return absl::OkStatus();
  absl::Status status = ErrnoStatus(errno, absl::StrCat("rename ", temporary_, " to ", final_));
  if (rename(replaced_.c_str(), final_.c_str()) == 0) return status;
  return Annotate(status, absl::StrCat("the old checkpoint is now ", replaced_));
}

absl::Status CheckpointWriter::Publish() const {
  const std::string doing = absl::StrCat("rename ", temporary_, " to ", final_);
  std::error_code ignored;
  if (!std::filesystem::exists(final_, ignored)) {
    if (rename(temporary_.c_str(), final_.c_str()) != 0) return ErrnoStatus(errno, doing);
  } else if (exchange_(temporary_, final_) != 0) {
    const bool cannot = errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP;
    if (!cannot) return ErrnoStatus(errno, absl::StrCat(doing, " in exchange"));
    WEFT_RETURN_IF_ERROR(ReplaceInTwoRenames());
  }
  WEFT_RETURN_IF_ERROR(SyncFolder(folder_));
  // What was there before has one of these names now.
  std::filesystem::remove_all(temporary_, ignored);
  std::filesystem::remove_all(replaced_, ignored);
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointWriter::Commit(const CheckpointState& state) {
  auto gathered = Gather();
  if (!gathered.ok()) {
    return Annotate(gathered.status(), absl::StrCat("commit checkpoint ", final_));
  }
  AddState(state, *gathered);
  return CommitCopy(*gathered);
}

absl::StatusOr<Manifest> CheckpointWriter::MakeManifest(absl::Span<const std::string> notes,
                                                        const CheckpointState& state) const {
  Manifest manifest;
  manifest.step = step_;
  manifest.world_size = world_size_;
  for (size_t rank = 0; rank < notes.size(); ++rank) {
    WEFT_RETURN_IF_ERROR(AddNote(static_cast<int>(rank), notes[rank], manifest));
  }
  WEFT_RETURN_IF_ERROR(CheckManifestLayout(manifest));
  AddState(state, manifest);
  return manifest;
}

absl::StatusOr<std::string> CheckpointWriter::CommitCopy(const Manifest& manifest) {
  WEFT_RETURN_IF_ERROR(RemoveUnlisted(manifest));
  WEFT_RETURN_IF_ERROR(
      WriteFileAtomically(absl::StrCat(temporary_, "/", kManifestName), ToJson(manifest)));
  WEFT_RETURN_IF_ERROR(Publish());
  return final_;
}

void CheckpointWriter::Abandon() {
  std::error_code ignored;
  std::filesystem::remove_all(temporary_, ignored);
}

}  // namespace weft::train
