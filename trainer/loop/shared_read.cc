#include "trainer/loop/shared_read.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/status.h"

namespace weft::train {
namespace {

using NeedNumbers = std::array<int64_t, 5>;

std::string ToBytes(const std::vector<ReadNeed>& needs) {
  std::string bytes;
  for (const auto& [buffer, range] : needs) {
    const NeedNumbers numbers = {static_cast<int64_t>(buffer), range.begin, range.length,
                                 range.stride, range.count};
    bytes.append(reinterpret_cast<const char*>(numbers.data()), sizeof(numbers));
  }
  return bytes;
}

bool IsWithin(const NeedNumbers& numbers, const Manifest& manifest) {
  const auto& [buffer, begin, length, stride, count] = numbers;
  if (buffer < 0 || buffer >= static_cast<int64_t>(manifest.buffers.size())) return false;
  const int64_t elements = manifest.buffers[static_cast<size_t>(buffer)].elements;
  if (begin < 0 || length < 1 || stride < 0 || count < 1 || begin > elements - length) return false;
  return count == 1 || (stride >= length && (elements - length - begin) / stride >= count - 1);
}

absl::StatusOr<std::vector<ReadNeed>> NeedsOf(const std::string& bytes, const Manifest& manifest) {
  std::vector<ReadNeed> needs;
  NeedNumbers numbers;
  for (size_t at = 0; at + sizeof(numbers) <= bytes.size(); at += sizeof(numbers)) {
    std::memcpy(numbers.data(), bytes.data() + at, sizeof(numbers));
    if (!IsWithin(numbers, manifest)) {
      return absl::InvalidArgumentError(absl::StrCat(
          numbers[4], " x ", numbers[2], " elements from ", numbers[1], " of buffer ", numbers[0],
          " of a checkpoint with ", manifest.buffers.size(), " buffers: not within it"));
    }
    needs.push_back(
        {static_cast<size_t>(numbers[0]),
         {.begin = numbers[1], .length = numbers[2], .stride = numbers[3], .count = numbers[4]}});
  }
  return needs;
}

class SharedRead {
 public:
  SharedRead(const CheckpointReader& reader, Group& group, const TakeElements& take)
      : reader_(reader),
        group_(group),
        take_(take),
        ranks_(static_cast<size_t>(group.size())),
        mine_(static_cast<size_t>(group.rank())) {}

  absl::StatusOr<ReadTotals> Execute(const std::vector<ReadNeed>& needs,
                                     const std::vector<std::vector<bool>>& holders,
                                     int64_t round_bytes) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, group_.Gather(ToBytes(needs)));
    std::vector<std::vector<ReadNeed>> all;
    for (const std::string& text : texts) {
      WEFT_ASSIGN_OR_RETURN(all.emplace_back(), NeedsOf(text, reader_.manifest()));
    }
    const ReadPlan plan = PlanRead(reader_.manifest(), all, round_bytes, holders);
    for (const std::vector<ReadChunk>& chunks : plan.rounds) {
      WEFT_RETURN_IF_ERROR(Round(chunks));
    }
    WEFT_RETURN_IF_ERROR(group_.Agree(failure_));
    double read = static_cast<double>(read_bytes_);
    WEFT_RETURN_IF_ERROR(group_.Sum(absl::MakeSpan(&read, 1)));
    return ReadTotals{.read_bytes = static_cast<int64_t>(read),
                      .minimum_bytes = plan.read_bytes,
                      .needed_bytes = plan.needed_bytes,
                      .passed_bytes = plan.passed_bytes};
  }

 private:
  const BufferLayout& LayoutOf(const ReadChunk& chunk) const {
    return reader_.manifest().buffers[chunk.buffer];
  }
  int64_t WidthOf(const ReadChunk& chunk) const { return SizeOf(LayoutOf(chunk).dtype); }

  // A chunk that cannot be read is of any bytes: the others are waiting for it, and learn of the
  // failure at the end.
  void Read(const ReadChunk& chunk, absl::Span<std::byte> out) {
    const BufferLayout& layout = LayoutOf(chunk);
    absl::Status status = reader_.ReadUnverified(chunk.shard, layout, chunk.begin, chunk.end, out);
    if (status.ok()) read_bytes_ += static_cast<int64_t>(out.size());
    if (chunk.begin == 0) checksum_ = 0;
    checksum_ = Crc32c(out, checksum_);
    const auto expected = layout.checksums.find(chunk.shard);
    if (status.ok() && chunk.end == chunk.tensor_elements && expected != layout.checksums.end() &&
        checksum_ != expected->second) {
      const ShardInfo& shard = reader_.manifest().shards[static_cast<size_t>(chunk.shard)];
      status = absl::DataLossError(
          absl::StrFormat("%s/%s is damaged: the checksum of buffer '%s' is %08x instead of %08x",
                          reader_.path(), shard.file, layout.name, checksum_, expected->second));
    }
    failure_.Update(status);
  }

  // What each rank has for each other, packed: one piece behind the other in the order of the plan.
  absl::Status Round(const std::vector<ReadChunk>& chunks) {
    std::vector<size_t> to(ranks_), from(ranks_);
    bool passes = false;
    size_t bytes = 0;
    for (const ReadChunk& chunk : chunks) {
      const auto width = static_cast<size_t>(WidthOf(chunk));
      if (chunk.reader == mine_) bytes += static_cast<size_t>(chunk.end - chunk.begin) * width;
      for (const ReadPiece& piece : chunk.pieces) {
        if (piece.rank == chunk.reader) continue;
        passes = true;
        const size_t size = static_cast<size_t>(piece.elements) * width;
        if (chunk.reader == mine_) to[piece.rank] += size;
        if (piece.rank == mine_) from[chunk.reader] += size;
      }
    }
    read_.resize(std::max(read_.size(), bytes));
    size_t at = 0;
    for (const ReadChunk& chunk : chunks) {
      if (chunk.reader != mine_) continue;
      const size_t size = static_cast<size_t>((chunk.end - chunk.begin) * WidthOf(chunk));
      Read(chunk, absl::MakeSpan(read_).subspan(at, size));
      at += size;
    }
    if (passes) return Pass(chunks, to, from);
    TakeOwn(chunks);
    return absl::OkStatus();
  }

  // Calls visit(chunk, piece, bytes of the piece in read_) for what this rank has read.
  template <typename Visit>
  void ForOwn(const std::vector<ReadChunk>& chunks, const Visit& visit) {
    const std::byte* chunk_bytes = read_.data();
    for (const ReadChunk& chunk : chunks) {
      if (chunk.reader != mine_) continue;
      const int64_t width = WidthOf(chunk);
      for (const ReadPiece& piece : chunk.pieces) {
        visit(piece, absl::MakeConstSpan(chunk_bytes + (piece.from - chunk.begin) * width,
                                         static_cast<size_t>(piece.elements * width)));
      }
      chunk_bytes += (chunk.end - chunk.begin) * width;
    }
  }

  void TakeOwn(const std::vector<ReadChunk>& chunks) {
    ForOwn(chunks, [&](const ReadPiece& piece, absl::Span<const std::byte> bytes) {
      if (piece.rank == mine_) take_(piece.need, piece.to, bytes);
    });
  }

  absl::Status Pass(const std::vector<ReadChunk>& chunks, const std::vector<size_t>& to,
                    const std::vector<size_t>& from) {
    std::vector<size_t> sent_begins(ranks_), received_begins(ranks_);
    size_t sent_bytes = 0, received_bytes = 0;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      sent_begins[rank] = sent_bytes;
      sent_bytes += to[rank];
      received_begins[rank] = received_bytes;
      received_bytes += from[rank];
    }
    at::Tensor sent = at::empty({static_cast<int64_t>(sent_bytes), 1}, at::kByte);
    at::Tensor received = at::empty({static_cast<int64_t>(received_bytes), 1}, at::kByte);
    std::vector<size_t> next = sent_begins;
    ForOwn(chunks, [&](const ReadPiece& piece, absl::Span<const std::byte> bytes) {
      if (piece.rank == mine_) return;
      std::memcpy(sent.data_ptr<uint8_t>() + next[piece.rank], bytes.data(), bytes.size());
      next[piece.rank] += bytes.size();
    });
    WEFT_ASSIGN_OR_RETURN(
        Pending pending,
        group_.ExchangeRows(received, {from, received_begins}, sent, {to, sent_begins},
                            /*typical_rows=*/0, "checkpoint", "wait_checkpoint"));
    TakeOwn(chunks);  // while the others' bytes come
    WEFT_RETURN_IF_ERROR(group_.Wait(pending));
    next = received_begins;
    for (const ReadChunk& chunk : chunks) {
      if (chunk.reader == mine_) continue;
      for (const ReadPiece& piece : chunk.pieces) {
        if (piece.rank != mine_) continue;
        const auto size = static_cast<size_t>(piece.elements * WidthOf(chunk));
        const auto* bytes = reinterpret_cast<const std::byte*>(received.data_ptr<uint8_t>());
        take_(piece.need, piece.to, absl::MakeConstSpan(bytes + next[chunk.reader], size));
        next[chunk.reader] += size;
      }
    }
    return absl::OkStatus();
  }

  const CheckpointReader& reader_;
  Group& group_;
  const TakeElements& take_;
  const size_t ranks_, mine_;
  std::vector<std::byte> read_;  // this rank's chunks of the round
  uint32_t checksum_ = 0;        // of the tensor that is being read
  int64_t read_bytes_ = 0;
  absl::Status failure_;  // the first
};

}  // namespace

absl::StatusOr<ReadTotals> ReadTogether(const CheckpointReader& reader,
                                        const std::vector<ReadNeed>& needs, Group& group,
                                        const TakeElements& take,
                                        const std::vector<std::vector<bool>>& holders,
                                        int64_t round_bytes) {
  return SharedRead(reader, group, take).Execute(needs, holders, round_bytes);
}

}  // namespace weft::train
