#include "trainer/parallel/group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft {
namespace {

absl::Status Failed(absl::string_view doing, const std::exception& error) {
  return absl::UnavailableError(absl::StrCat(doing, ": ", ExceptionText(error)));
}

}  // namespace

std::string ExceptionText(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

absl::StatusOr<Pending> Group::ReduceScatterAverage(at::Tensor shard, at::Tensor full) {
  Pending pending{nullptr, "reduce_scatter", SystemClock::Nanoseconds(),
                  static_cast<int64_t>(full.nbytes())};
  if (size_ == 1) return pending;
  try {
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::AVG;
    pending.work = backend_->_reduce_scatter_base(shard, full, options);
  } catch (const std::exception& error) {
    return Failed("reduce-scatter of gradients", error);
  }
  return pending;
}

absl::StatusOr<Pending> Group::AllGather(at::Tensor full, at::Tensor shard) {
  Pending pending{nullptr, "all_gather", SystemClock::Nanoseconds(),
                  static_cast<int64_t>(full.nbytes())};
  if (size_ == 1) return pending;
  try {
    pending.work = backend_->_allgather_base(full, shard, c10d::AllgatherOptions());
  } catch (const std::exception& error) {
    return Failed("all-gather of parameters", error);
  }
  return pending;
}

absl::StatusOr<int64_t> Group::Wait(Pending& pending) {
  if (pending.work == nullptr) return 0;
  try {
    pending.work->wait();
    double milliseconds = pending.work->getDuration();
    pending.work = nullptr;
    return pending.start_ns + static_cast<int64_t>(milliseconds * 1e6);
  } catch (const std::exception& error) {
    return Failed(pending.name, error);
  }
}

absl::Status Group::Sum(absl::Span<double> values) {
  if (size_ == 1) return absl::OkStatus();
  try {
    std::vector<at::Tensor> tensors = {
        at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble)};
    backend_->allreduce(tensors, c10d::AllreduceOptions())->wait();
  } catch (const std::exception& error) {
    return Failed("all-reduce", error);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> Group::Gather(absl::string_view text) {
  if (size_ == 1) return std::vector<std::string>{std::string(text)};
  try {
    at::Tensor length = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
    at::Tensor lengths = at::empty({size_}, at::kLong);
    backend_->_allgather_base(lengths, length, c10d::AllgatherOptions())->wait();
    int64_t largest = std::max<int64_t>(1, lengths.max().item<int64_t>());
    at::Tensor mine = at::zeros({largest}, at::kByte);
    std::memcpy(mine.data_ptr(), text.data(), text.size());
    at::Tensor all = at::empty({size_ * largest}, at::kByte);
    backend_->_allgather_base(all, mine, c10d::AllgatherOptions())->wait();
    std::vector<std::string> texts;
    for (int rank = 0; rank < size_; ++rank) {
      texts.emplace_back(static_cast<const char*>(all.data_ptr()) + rank * largest,
                         static_cast<size_t>(lengths[rank].item<int64_t>()));
    }
    return texts;
  } catch (const std::exception& error) {
    return Failed("all-gather", error);
  }
}

absl::StatusOr<std::string> Group::FromFirst(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts, Gather(rank_ == 0 ? text : ""));
  return texts[0];
}

absl::Status Group::Agree(const absl::Status& status) {
  absl::Status agreed;
  WEFT_RETURN_IF_ERROR(Agree(status, agreed));
  return agreed;
}

absl::Status Group::Agree(const absl::Status& status, absl::Status& agreed) {
  agreed = status;
  if (size_ == 1) return absl::OkStatus();
  std::string text;
  if (!status.ok()) text = absl::StrCat(static_cast<int>(status.code()), " ", status.message());
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts, Gather(text));
  for (int rank = 0; rank < size_; ++rank) {
    const std::string& other = texts[static_cast<size_t>(rank)];
    if (other.empty()) continue;
    size_t space = other.find(' ');
    agreed = absl::Status(static_cast<absl::StatusCode>(std::stoi(other.substr(0, space))),
                          absl::StrCat("rank ", rank, ": ", other.substr(space + 1)));
    break;
  }
  return absl::OkStatus();
}

}  // namespace weft
