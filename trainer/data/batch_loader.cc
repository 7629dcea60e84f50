#include "trainer/data/batch_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {
namespace {

constexpr int64_t kBatchTokensMost = int64_t{1} << 28;  // of one rank, in 2 GiB of memory

}  // namespace

absl::Status CheckBatchFits(int64_t rows, int64_t seq_length) {
  if (rows <= kBatchTokensMost / (seq_length + 1)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      rows, " samples of ", seq_length + 1, " tokens a step and rank; at most ", kBatchTokensMost,
      " tokens fit: take a smaller train.global_batch, or more ranks"));
}

absl::StatusOr<std::unique_ptr<BatchLoader>> BatchLoader::Start(
    std::shared_ptr<const SampleSource> stream, const BatchOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of ", options.world_size, " ranks"));
  }
  if (options.global_batch < 1 || options.global_batch % options.world_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a global batch of ", options.global_batch,
                                                   " samples over ", options.world_size,
                                                   " ranks; it must be a multiple of the ranks"));
  }
  if (options.start_sample < 0 || options.prefetch < 0) {
    return absl::InvalidArgumentError(absl::StrCat("start at sample ", options.start_sample, ", ",
                                                   options.prefetch,
                                                   " batches ahead; at least 0 of both is right"));
  }
  WEFT_RETURN_IF_ERROR(
      CheckBatchFits(options.global_batch / options.world_size, stream->seq_length()));
  return std::unique_ptr<BatchLoader>(new BatchLoader(std::move(stream), options));
}

BatchLoader::BatchLoader(std::shared_ptr<const SampleSource> stream, const BatchOptions& options)
    : stream_(std::move(stream)), options_(options), position_(options.start_sample) {
  if (options_.prefetch > 0) thread_ = std::thread([this] { Run(); });
}

BatchLoader::~BatchLoader() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<Batch> BatchLoader::Make(int64_t first) const {
  SampleRange range = RankSlice(first, options_.global_batch, options_.rank, options_.world_size);
  Batch batch;
  batch.first_sample = range.begin;
  batch.rows = range.end - range.begin;
  batch.columns = stream_->seq_length() + 1;
  batch.tokens.reserve(static_cast<size_t>(batch.rows * batch.columns));
  std::vector<int32_t> row(static_cast<size_t>(batch.columns));
  for (int64_t sample = range.begin; sample < range.end; ++sample) {
    WEFT_RETURN_IF_ERROR(stream_->Read(sample, absl::MakeSpan(row)));
    batch.tokens.insert(batch.tokens.end(), row.begin(), row.end());
  }
  return batch;
}

void BatchLoader::Run() {
  for (int64_t first = options_.start_sample;; first += options_.global_batch) {
    absl::StatusOr<Batch> batch = Make(first);
    const bool failed = !batch.ok();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] {
      return stopping_ || ready_.size() < static_cast<size_t>(options_.prefetch);
    });
    if (stopping_) return;
    ready_.push_back(std::move(batch));
    changed_.notify_all();
    if (failed) return;
  }
}

absl::StatusOr<Batch> BatchLoader::Next() {
  std::unique_lock lock(mutex_);
  if (options_.prefetch == 0 && ready_.empty()) ready_.push_back(Make(position_));
  changed_.wait(lock, [this] { return !ready_.empty(); });
  if (!ready_.front().ok()) return ready_.front().status();  // stays, for the next call
  absl::StatusOr<Batch> batch = std::move(ready_.front());
  ready_.pop_front();
  position_ += options_.global_batch;
  changed_.notify_all();
  return batch;
}

}  // namespace weft::train
