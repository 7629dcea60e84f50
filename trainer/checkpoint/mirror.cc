#include "trainer/checkpoint/mirror.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

// A checkpoint whose files stay readable when their names are gone.
struct Source {
  Manifest manifest;
  std::vector<MappedFile> shards;
};

absl::StatusOr<std::shared_ptr<const Source>> OpenSource(const std::string& path) {
  auto source = std::make_shared<Source>();
  WEFT_ASSIGN_OR_RETURN(source->manifest, ReadManifest(path));
  for (const ShardInfo& shard : source->manifest.shards) {
    WEFT_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(absl::StrCat(path, "/", shard.file)));
    source->shards.push_back(std::move(file));
  }
  return source;
}

absl::Status Copy(const Source& source, const std::string& folder,
                  const std::atomic<bool>& gives_up) {
  const Manifest& manifest = source.manifest;
  CheckpointWriter writer(folder, manifest.step, manifest.world_size);
  absl::Status status = MakeFolders(writer.temporary());
  for (size_t i = 0; status.ok() && i < source.shards.size(); ++i) {
    const ShardInfo& shard = manifest.shards[i];
    status = CopyShard(source.shards[i], shard, absl::StrCat(writer.temporary(), "/", shard.file),
                       gives_up);
  }
  if (status.ok()) status = writer.CommitCopy(manifest).status();
  if (!status.ok()) writer.Abandon();
  return status;
}

}  // namespace

absl::Status CopyShard(const MappedFile& from, const ShardInfo& shard, const std::string& to,
                       const std::atomic<bool>& gives_up) {
  WEFT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(to));
  uint32_t checksum = 0;
  for (size_t at = 0; at < from.bytes().size(); at += kChunk) {
    const absl::Span<const std::byte> chunk = from.bytes().subspan(at, kChunk);
    if (gives_up.load()) return absl::CancelledError(absl::StrCat(to, ": the run has ended"));
    checksum = Crc32c(chunk, checksum);
    WEFT_RETURN_IF_ERROR(file.Append(chunk));
  }
  if (checksum != shard.crc32c) {
    return absl::DataLossError(
        absl::StrFormat("%s is damaged: its checksum is %08x instead of %08x", from.path(),
                        checksum, shard.crc32c));
  }
  return file.Commit();
}

absl::Status CopyCheckpoint(const std::string& path, const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Source> source, OpenSource(path));
  return Copy(*source, folder, /*gives_up=*/false);
}

CheckpointMirror::~CheckpointMirror() {
  shared_->gives_up.store(true);
  if (copying_.valid()) copying_.wait_for(absl::ToChronoNanoseconds(end_patience_));
}

absl::Status CheckpointMirror::Begin(const std::string& path, bool& began) {
  began =
      !copying_.valid() || copying_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (!began) {
    ++left_out_;
    return absl::OkStatus();
  }
  absl::Status before = Finish();
  absl::StatusOr<std::shared_ptr<const Source>> source = OpenSource(path);
  began = source.ok();
  if (!began) return before.ok() ? source.status() : before;
  copying_ = StartUnboundDetached([shared = shared_, source = *std::move(source)] {
    WEFT_RETURN_IF_ERROR(
        Annotate(Copy(*source, shared->folder, shared->gives_up),
                 absl::StrCat("copy step ", source->manifest.step, " to ", shared->folder)));
    shared->retention.Committed(source->manifest.step);
    return shared->retention.Prune(shared->gives_up).status();
  });
  return before;
}

absl::Status CheckpointMirror::Finish(absl::Duration patience) {
  if (!copying_.valid()) return absl::OkStatus();
  const bool is_bounded = patience != absl::InfiniteDuration();
  if (is_bounded &&
      copying_.wait_for(absl::ToChronoNanoseconds(patience)) != std::future_status::ready) {
    shared_->gives_up.store(true);
    return absl::DeadlineExceededError(absl::StrCat("the copy to ", folder(), " takes longer than ",
                                                    absl::FormatDuration(patience)));
  }
  absl::Status status = copying_.get();
  if (status.ok()) ++copied_;
  return status;
}

}  // namespace weft::train
