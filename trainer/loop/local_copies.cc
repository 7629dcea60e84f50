#include "trainer/loop/local_copies.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/checkpoint/writer.h"
#include "trainer/groups/status_error.h"

namespace weft::train {

absl::Status LocalCopies::Begin(const std::string& path, Manifest manifest, Group& group) {
  // Rank 0 is through when all others have nothing left to do but to end.
  const bool is_busy =
      copying_.valid() && copying_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  WEFT_ASSIGN_OR_RETURN(const std::string first, group.FromFirst(is_busy ? "busy" : "free"));
  if (first != "free") {
    ++left_out_;
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(Finish());
  // Open before it may be deleted.
  auto shard = std::make_shared<const absl::StatusOr<MappedFile>>(
      MappedFile::Open(absl::StrCat(path, "/", ShardName(group.rank(), group.size()))));
  copying_ = StartUnbound([this, manifest = std::move(manifest), shard = std::move(shard)] {
    return Guarded([&] { return Copy(manifest, shard); });
  });
  return absl::OkStatus();
}

absl::Status LocalCopies::Finish() { return copying_.valid() ? copying_.get() : absl::OkStatus(); }

void LocalCopies::GiveUp() {
  const absl::MutexLock lock(&writing_->mutex);
  writing_->gives_up.store(true);
}

absl::Status LocalCopies::Copy(const Manifest& manifest, const Shard& shard) {
  const ShardInfo& info = manifest.shards[static_cast<size_t>(group_.rank())];
  absl::Status failure;
  WEFT_RETURN_IF_ERROR(shared_.Copy(
      manifest, [&](const std::string& folder) { return WriteShard(shard, info, folder); }, group_,
      failure));
  if (failure.ok()) {
    ++copied_;
  } else if (group_.rank() == 0) {
    WEFT_LOG_WARN("copy step ", manifest.step, " from the local disks to ", shared_.folder(), ": ",
                  failure.message());
  }
  return absl::OkStatus();
}

// The thread that writes owns all that it uses: this one, which uses the group, need not wait for a
// file system that does not answer.
absl::Status LocalCopies::WriteShard(const Shard& shard, const ShardInfo& info,
                                     const std::string& folder) {
  WEFT_RETURN_IF_ERROR(shard->status());
  Writing& writing = *writing_;
  const auto given_up = [&] {
    return absl::CancelledError(absl::StrCat(folder, ": the run has ended"));
  };
  {
    const absl::MutexLock lock(&writing.mutex);
    if (writing.gives_up.load()) return given_up();
    writing.ended.reset();
  }
  StartUnboundDetached([writing = writing_, shard, info, folder] {
    absl::Status status = Guarded([&]() -> absl::Status {
      WEFT_RETURN_IF_ERROR(MakeFolders(folder));
      return CopyShard(**shard, info, absl::StrCat(folder, "/", info.file), writing->gives_up);
    });
    const absl::MutexLock lock(&writing->mutex);
    writing->ended = std::move(status);
  });
  const auto has_ended = [&] { return writing.ended.has_value(); };
  const auto may_go_on = [&] { return has_ended() || writing.gives_up.load(); };
  const absl::MutexLock lock(&writing.mutex);
  writing.mutex.Await(absl::Condition(&may_go_on));
  if (!writing.mutex.AwaitWithTimeout(absl::Condition(&has_ended), end_patience_)) {
    return given_up();
  }
  return *writing.ended;
}

}  // namespace weft::train
