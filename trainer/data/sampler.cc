#include "trainer/data/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"

namespace weft::train {
namespace {

// Random streams of one seed: two an epoch, apart from those that a program numbers from 0.
constexpr uint64_t kDocumentStream = uint64_t{0x646F63} << 40;
constexpr uint64_t kWindowStream = uint64_t{0x77696E} << 40;

}  // namespace

absl::StatusOr<int64_t> SamplesPerEpoch(absl::string_view dataset, int64_t tokens,
                                        int64_t seq_length) {
  if (tokens >= seq_length + 1) return (tokens - 1) / seq_length;
  return absl::InvalidArgumentError(
      absl::StrCat("dataset ", dataset, " has ", tokens, " tokens, but one sample takes ",
                   seq_length + 1, " (sequence length ", seq_length, " and the next token)"));
}

absl::StatusOr<std::unique_ptr<SampleStream>> SampleStream::Open(const std::string& prefix,
                                                                 int64_t seq_length, uint64_t seed,
                                                                 SampleOrder order,
                                                                 int64_t vocab_size) {
  if (seq_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence length of ", seq_length, " tokens; 1 is the least"));
  }
  WEFT_ASSIGN_OR_RETURN(IndexedDataset dataset, IndexedDataset::Open(prefix, vocab_size));
  WEFT_ASSIGN_OR_RETURN(const int64_t samples,
                        SamplesPerEpoch(prefix, dataset.tokens(), seq_length));
  constexpr int64_t kMost = std::numeric_limits<uint32_t>::max();
  if (dataset.sequences() > kMost || dataset.tokens() / seq_length > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("dataset ", prefix, " has more than 2^32 - 1 sequences or windows; split it"));
  }
  return std::unique_ptr<SampleStream>(
      new SampleStream(std::move(dataset), seq_length, samples, seed, order));
}

SampleStream::SampleStream(IndexedDataset dataset, int64_t seq_length, int64_t samples_per_epoch,
                           uint64_t seed, SampleOrder order)
    : dataset_(std::move(dataset)),
      seq_length_(seq_length),
      samples_per_epoch_(samples_per_epoch),
      seed_(seed),
      order_(order) {}

std::shared_ptr<const SampleStream::Epoch> SampleStream::Build(int64_t number) const {
  auto epoch = std::make_shared<Epoch>();
  epoch->number = number;
  std::vector<uint32_t> documents(static_cast<size_t>(dataset_.documents()));
  std::iota(documents.begin(), documents.end(), 0U);
  if (order_ == SampleOrder::kShuffled) {
    const auto stream = static_cast<uint64_t>(number);
    Random(seed_, kDocumentStream + stream).Shuffle(documents);
    epoch->windows.resize(static_cast<size_t>(samples_per_epoch_));
    std::iota(epoch->windows.begin(), epoch->windows.end(), 0U);
    Random(seed_, kWindowStream + stream).Shuffle(epoch->windows);
  }
  epoch->sequences.reserve(static_cast<size_t>(dataset_.sequences()));
  epoch->starts.reserve(static_cast<size_t>(dataset_.sequences()) + 1);
  int64_t start = 0;
  for (uint32_t document : documents) {
    const int64_t last = dataset_.LastSequence(document);
    for (int64_t sequence = dataset_.FirstSequence(document); sequence < last; ++sequence) {
      epoch->sequences.push_back(static_cast<uint32_t>(sequence));
      epoch->starts.push_back(start);
      start += dataset_.SequenceLength(sequence);
    }
  }
  epoch->starts.push_back(start);
  return epoch;
}

std::shared_ptr<const SampleStream::Epoch> SampleStream::Get(int64_t number) const {
  if (order_ == SampleOrder::kSequential) number = 0;
  std::lock_guard lock(mutex_);
  for (const auto& epoch : recent_) {
    if (epoch->number == number) return epoch;
  }
  if (recent_.size() == 2) recent_.erase(recent_.begin());
  recent_.push_back(Build(number));
  return recent_.back();
}

absl::Status SampleStream::Read(int64_t global_sample, absl::Span<int32_t> tokens) const {
  if (global_sample < 0 || static_cast<int64_t>(tokens.size()) != seq_length_ + 1) {
    return absl::InvalidArgumentError(absl::StrCat("sample ", global_sample, " into ",
                                                   tokens.size(), " tokens; samples count ",
                                                   "from 0 and take ", seq_length_ + 1));
  }
  std::shared_ptr<const Epoch> epoch = Get(global_sample / samples_per_epoch_);
  int64_t window = global_sample % samples_per_epoch_;
  if (!epoch->windows.empty()) window = epoch->windows[static_cast<size_t>(window)];

  // The last sequence that begins at or before the window's first token; empty ones are stepped
  // over.
  int64_t token = window * seq_length_;
  auto after = std::upper_bound(epoch->starts.begin(), epoch->starts.end(), token);
  auto position = static_cast<size_t>(after - epoch->starts.begin()) - 1;
  while (!tokens.empty()) {
    int64_t available = epoch->starts[position + 1] - token;
    auto take = static_cast<size_t>(std::min<int64_t>(available, tokens.size()));
    WEFT_RETURN_IF_ERROR(dataset_.Read(epoch->sequences[position], token - epoch->starts[position],
                                       tokens.subspan(0, take)));
    tokens.remove_prefix(take);
    token += static_cast<int64_t>(take);
    ++position;
  }
  return absl::OkStatus();
}

SampleRange RankSlice(int64_t first, int64_t global_batch, int rank, int world_size) {
  WEFT_CHECK(world_size > 0 && rank >= 0 && rank < world_size && global_batch % world_size == 0,
             "rank " << rank << " of " << world_size << ", global batch " << global_batch);
  const int64_t part = global_batch / world_size;
  return {first + rank * part, first + (rank + 1) * part};
}

}  // namespace weft::train
