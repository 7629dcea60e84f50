#include "trainer/groups/agreement.h"

#include <cstdint>
#include <future>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "topology/host/thread_binding.h"
#include "trainer/groups/status_error.h"

namespace weft::train {
namespace {

using collectives::DataType;
using collectives::GroupRank;
using collectives::Priority;
using collectives::ReduceOp;

constexpr char kAgreedPayload[] = "weft.train/agreed";
constexpr uint32_t kTextTag = 0x54455854;  // "TEXT"

// The group's failure, whose code and payloads tell what ended the job, preceded by the error that
// this rank's work has met beside it. Work that was cancelled gave up since the group has failed.
absl::Status AfterOwnError(const absl::Status& own, const absl::Status& failure) {
  if (own.ok() || absl::IsCancelled(own)) return failure;
  return Annotate(failure, absl::StrCat(own.message(), "; and the group has failed"));
}

}  // namespace

absl::Status AsAgreed(absl::Status status) {
  if (!status.ok()) status.SetPayload(kAgreedPayload, absl::Cord());
  return status;
}
bool IsAgreed(const absl::Status& status) { return status.GetPayload(kAgreedPayload).has_value(); }

absl::Status Agreement::Sum(absl::Span<double> values) {
  WEFT_RETURN_IF_ERROR(CheckNccl());
  if (size() == 1) return absl::OkStatus();
  communicator_->SetPriority(Priority::kNormal);
  return Block(*communicator_->AllReduce(values.data(), values.data(), values.size(),
                                         DataType::kFloat64, ReduceOp::kSum),
               "wait_sum");
}

absl::StatusOr<std::vector<size_t>> Agreement::GatherLengths(absl::string_view text) {
  const int64_t length = static_cast<int64_t>(text.size());
  std::vector<int64_t> lengths(static_cast<size_t>(size()));
  communicator_->SetPriority(Priority::kNormal);
  WEFT_RETURN_IF_ERROR(
      Block(*communicator_->AllGather(&length, lengths.data(), 1, DataType::kInt64), "wait_agree"));
  return std::vector<size_t>(lengths.begin(), lengths.end());
}

absl::StatusOr<std::vector<std::string>> Agreement::Gather(absl::string_view text) {
  WEFT_RETURN_IF_ERROR(CheckNccl());
  if (size() == 1) return std::vector<std::string>{std::string(text)};
  WEFT_ASSIGN_OR_RETURN(const std::vector<size_t> counts, GatherLengths(text));
  const size_t ranks = counts.size();
  std::vector<size_t> offsets(ranks);
  size_t all = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    offsets[rank] = all;
    all += counts[rank];
  }
  std::string joined(all, '\0');
  WEFT_RETURN_IF_ERROR(Block(
      *communicator_->AllGatherV(text.data(), joined.data(), counts, offsets, DataType::kUint8),
      "wait_agree"));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(joined.substr(offsets[rank], counts[rank]));
  }
  return texts;
}

absl::StatusOr<std::vector<std::string>> Agreement::GatherOnFirst(absl::string_view text) {
  if (size() == 1) return std::vector<std::string>{std::string(text)};
  WEFT_ASSIGN_OR_RETURN(const std::vector<size_t> lengths, GatherLengths(text));
  std::vector<std::string> texts;
  std::vector<collectives::WorkPtr> works;
  if (rank() > 0 && !text.empty()) {
    works.push_back(communicator_->Send(text.data(), text.size(), GroupRank(0), kTextTag));
  }
  if (rank() == 0) {
    texts.resize(lengths.size());
    texts[0] = std::string(text);
  }
  for (size_t other = 1; other < texts.size(); ++other) {
    if (lengths[other] == 0) continue;
    texts[other].resize(lengths[other]);
    works.push_back(communicator_->Receive(texts[other].data(), lengths[other],
                                           GroupRank(static_cast<int>(other)), kTextTag));
  }
  absl::Status status;
  for (const collectives::WorkPtr& work : works) status.Update(Block(*work, "wait_agree"));
  WEFT_RETURN_IF_ERROR(status);
  return texts;
}

absl::StatusOr<std::string> Agreement::FromFirst(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts, Gather(rank() == 0 ? text : ""));
  return texts[0];
}

absl::Status Agreement::Agree(const absl::Status& status) {
  absl::Status agreed;
  WEFT_RETURN_IF_ERROR(Agree(status, agreed));
  return agreed;
}

absl::Status Agreement::Agree(const absl::Status& status, absl::Status& agreed) {
  agreed = status;
  if (size() == 1) return absl::OkStatus();
  std::string text;
  if (!status.ok()) text = absl::StrCat(static_cast<int>(status.code()), " ", status.message());
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts, Gather(text));
  for (size_t member = 0; member < texts.size(); ++member) {
    const std::string& other = texts[member];
    if (other.empty()) continue;
    size_t space = other.find(' ');
    int code = static_cast<int>(absl::StatusCode::kUnknown);
    (void)absl::SimpleAtoi(other.substr(0, space), &code);
    agreed = absl::Status(
        static_cast<absl::StatusCode>(code),
        absl::StrCat("rank ", members_[member].value(), ": ", other.substr(space + 1)));
    if (size() == job_size_) agreed = AsAgreed(std::move(agreed));
    break;
  }
  return absl::OkStatus();
}

bool Agreement::has_failed() const {
  if (size() == 1) return false;
  return !CheckNccl().ok() || !communicator_->status().ok();
}

absl::Status Agreement::RunTogether(const std::function<absl::Status()>& work, absl::Status& agreed,
                                    absl::Duration interval) {
  if (size() == 1) {
    agreed = Guarded(work);
    return absl::OkStatus();
  }
  absl::Notification done;
  // Without a trace: meetings are no phases of a step.
  std::future<absl::Status> meetings = StartUnbound([&]() -> absl::Status {
    for (double busy = 1; busy > 0;) {
      busy = done.WaitForNotificationWithTimeout(interval) ? 0 : 1;
      WEFT_RETURN_IF_ERROR(CheckNccl());
      communicator_->SetPriority(Priority::kNormal);
      WEFT_RETURN_IF_ERROR(
          communicator_->AllReduce(&busy, &busy, 1, DataType::kFloat64, ReduceOp::kSum)->Wait());
    }
    return absl::OkStatus();
  });
  const absl::Status mine = Guarded(work);
  done.Notify();
  absl::Status failure = times_.Block([&meetings] { return meetings.get(); }, "wait_agree");
  if (failure.ok()) failure = Agree(mine, agreed);
  return AfterOwnError(mine, failure);
}

}  // namespace weft::train
