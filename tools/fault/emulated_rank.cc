#include "tools/fault/emulated_rank.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/records.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "tools/job/job.h"

namespace weft::fault {
namespace {

using collectives::Communicator;
using collectives::DataType;
using collectives::ReduceOp;
using collectives::WorkPtr;

constexpr size_t kGradients = 64 << 10;  // floats of a bucket
constexpr int kBuckets = 2;
constexpr int kCheckpointEvery = 15;
constexpr size_t kActivations = 256 << 10;  // bytes; more than goes without a receive

// A process that hangs, hangs; the launcher or the bench ends it.
[[noreturn]] void Forever() {
  while (true) pause();
}

class Rank {
 public:
  Rank(job::Joined joined, const EmulationOptions& options)
      : joined_(std::move(joined)),
        options_(options),
        world_(*joined_.world),
        records_(joined_.endpoint->records()),
        rank_(world_.rank().value()),
        noise_(options.seed, static_cast<uint64_t>(rank_) + 100),
        gradients_(kBuckets, std::vector<float>(kGradients, 1.0f)),
        outgoing_(kActivations),
        incoming_(kActivations) {
    Random draw(options.seed);
    const auto drawn = static_cast<int>(draw.Below(static_cast<uint64_t>(world_.size())));
    culprit_ = options.rank >= 0 ? options.rank % world_.size() : drawn;
  }

  absl::Status Run() {
    WEFT_ASSIGN_OR_RETURN(first_, Group("first"));
    WEFT_ASSIGN_OR_RETURN(second_, Group("second"));
    if (Has("late-start") && rank_ == culprit_) Sleep(1.0, absl::Milliseconds(700));
    for (step_ = 1; step_ <= options_.steps; ++step_) {
      WEFT_RETURN_IF_ERROR(Step());
    }
    return absl::OkStatus();
  }

 private:
  bool Has(absl::string_view fault) const { return options_.fault == fault; }
  // From its step on, on its rank. Says so once.
  bool Begins(absl::string_view fault) {
    const bool begins = Has(fault) && rank_ == culprit_ && step_ >= options_.at_step;
    if (begins && !std::exchange(said_, true)) {
      std::printf("{\"onset_ns\":%lld,\"fault\":\"%s\",\"rank\":%d,\"step\":%d,\"pid\":%d}\n",
                  static_cast<long long>(SystemClock::Nanoseconds()), options_.fault.c_str(), rank_,
                  step_, getpid());
      std::fflush(stdout);
    }
    return begins;
  }
  bool BeginsNow(absl::string_view fault) { return Begins(fault) && step_ == options_.at_step; }

  absl::StatusOr<std::unique_ptr<Communicator>> Group(absl::string_view name) {
    std::vector<weft::Rank> ranks;
    for (int rank = 0; rank < world_.size(); ++rank) ranks.emplace_back(rank);
    return Communicator::Create(joined_.endpoint, name, std::move(ranks));
  }

  RecordName Name(absl::string_view name) {
    return records_ == nullptr ? RecordName{0} : records_->Name(name);
  }

  // This part of a step's compute, a little more or less.
  void Sleep(double factor, absl::Duration whole) {
    const double jitter = 0.98 + 0.04 * static_cast<double>(noise_.Below(1000)) / 1000;
    absl::SleepFor(whole * factor * jitter);
  }
  void Compute(absl::string_view phase, double part, double factor = 1) {
    PhaseScope scope(records_, Name(phase), step_);
    if (step_ == 1 || (Has("warm-up") && step_ <= 5)) factor *= 3;  // everybody's first steps
    if (Has("uneven-lengths")) factor *= 0.8 + 0.4 * static_cast<double>(noise_.Below(100)) / 100;
    Sleep(part * factor, options_.step_time);
  }
  absl::Status Wait(const WorkPtr& work, absl::string_view phase) {
    PhaseScope scope(records_, Name(phase), step_);
    return work->Wait();
  }

  absl::Status Step() {
    if (records_ != nullptr) records_->SetStep(step_);
    const int64_t start = SystemClock::Nanoseconds();
    const int64_t exposed_before = exposed_ns_;
    WEFT_RETURN_IF_ERROR(Data());
    WEFT_RETURN_IF_ERROR(Forward());
    WEFT_RETURN_IF_ERROR(Backward());
    Compute("optimizer", 0.1);
    WEFT_RETURN_IF_ERROR(Norm());
    if (step_ % kCheckpointEvery == 0) Compute("checkpoint", Has("long-checkpoint") ? 5 : 1);
    if (Has("evaluation") && step_ == options_.at_step) {
      for (int batch = 0; batch < 5; ++batch) Compute("forward", 0.3);
    }
    if (records_ != nullptr) {
      StepRecord record;
      record.start_ns = start;
      record.end_ns = SystemClock::Nanoseconds();
      record.step = step_;
      record.loss = 5.0 / step_;
      record.tokens = 4096;
      record.exposed_ns = exposed_ns_ - exposed_before;
      record.spare = BeginsNow("not-finite") ? 1 : 0;
      records_->Write(record);
    }
    return absl::OkStatus();
  }

  absl::Status Data() {
    PhaseScope scope(records_, Name("data"), step_);
    if (BeginsNow("hang-data")) Forever();
    if (BeginsNow("stop")) raise(SIGSTOP);
    Sleep(0.05 * (Begins("slow-data") ? 20 * options_.severity : 1), options_.step_time);
    return absl::OkStatus();
  }

  absl::Status Forward() {
    {
      PhaseScope scope(records_, Name("forward"), step_);
      if (BeginsNow("hang-compute")) Forever();
      if (BeginsNow("kill")) raise(SIGKILL);
      if (BeginsNow("crash")) std::abort();
      if (BeginsNow("leave")) {
        std::fflush(stdout);
        first_.reset();
        second_.reset();
        joined_ = {};
        _exit(0);
      }
      if (Has("pause") && rank_ == culprit_ && step_ == options_.at_step) {
        Sleep(3, options_.step_time);
      }
    }
    Compute("forward", 0.3, Begins("slow-compute") ? options_.severity : 1);
    return world_.size() > 1 ? Exchange() : absl::OkStatus();
  }

  // To the next rank and from the one before, as a pipeline's stages do.
  absl::Status Exchange() {
    const int size = world_.size();
    const weft::Rank next((rank_ + 1) % size), before((rank_ + size - 1) % size);
    WorkPtr receive;
    if (!Begins("no-receive")) {
      receive = world_.Receive(incoming_.data(), incoming_.size(), before, 7);
    }
    if (Begins("slow-receiver")) absl::SleepFor(options_.step_time * options_.severity);
    const WorkPtr send = world_.Send(outgoing_.data(), outgoing_.size(), next, 7);
    if (receive != nullptr) WEFT_RETURN_IF_ERROR(Wait(receive, "wait_receive"));
    return Wait(send, "wait_send");
  }

  absl::Status Backward() {
    std::vector<WorkPtr> works;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      Compute("backward", 0.55 / kBuckets, Begins("slow-compute") ? options_.severity : 1);
      std::vector<float>& values = gradients_[static_cast<size_t>(bucket)];
      size_t count = values.size();
      if (BeginsNow("other-size")) count /= 2;
      works.push_back(BeginsNow("other-call")
                          ? world_.Broadcast(values.data(), values.data(), count,
                                             DataType::kFloat32, weft::Rank(0))
                          : world_.AllReduce(values.data(), values.data(), count,
                                             DataType::kFloat32, ReduceOp::kAverage));
    }
    for (const WorkPtr& work : works) {
      const int64_t start = SystemClock::Nanoseconds();
      WEFT_RETURN_IF_ERROR(Wait(work, "wait_all_reduce"));
      exposed_ns_ += SystemClock::Nanoseconds() - start;
    }
    return absl::OkStatus();
  }

  // Two groups of everybody, in one order; a deadlock where one rank takes them in the other.
  absl::Status Norm() {
    Communicator* groups[] = {first_.get(), second_.get()};
    if (BeginsNow("crossed-groups")) std::swap(groups[0], groups[1]);
    for (Communicator* group : groups) {
      double norm = 1;
      WEFT_RETURN_IF_ERROR(
          Wait(group->AllReduce(&norm, &norm, 1, DataType::kFloat64, ReduceOp::kSum), "wait_norm"));
    }
    return absl::OkStatus();
  }

  job::Joined joined_;
  const EmulationOptions options_;
  Communicator& world_;
  Records* const records_;
  const int rank_;
  int culprit_ = 0;
  Random noise_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::byte> outgoing_, incoming_;
  std::unique_ptr<Communicator> first_, second_;
  int step_ = 0;
  int64_t exposed_ns_ = 0;
  bool said_ = false;
};

}  // namespace

const std::vector<FaultRow>& Faults() {
  static const std::vector<FaultRow> faults = {
      {"none", "a healthy job", "", ""},
      {"pause", "benign: one rank pauses for three steps' time, once", "", ""},
      {"evaluation", "benign: all ranks evaluate after a step", "", ""},
      {"long-checkpoint", "benign: every 15th step takes six times as long", "", ""},
      {"warm-up", "benign: the first five steps take three times as long", "", ""},
      {"uneven-lengths", "benign: each rank's work differs by a fifth from step to step", "", ""},
      {"late-start", "benign: one rank begins 0.7 s late", "", ""},
      {"kill", "SIGKILL in the forward pass", "dead rank", "process"},
      {"crash", "abort() in the forward pass", "dead rank", "process"},
      {"leave", "exit status 0 before the last step", "rank left early", "program"},
      {"stop", "SIGSTOP while it waits for data", "stopped rank", "process"},
      {"hang-data", "its data never comes", "hang outside of communication", "data"},
      {"hang-compute", "its forward pass never ends", "hang outside of communication", "program"},
      {"other-call", "it calls broadcast where the others call all_reduce", "different calls",
       "program"},
      {"other-size", "it reduces half as many elements", "different calls", "program"},
      {"crossed-groups", "it takes two groups in the other order", "deadlock", "program"},
      {"no-receive", "it posts no receive for what is sent to it", "receiver does not post",
       "program"},
      {"slow-compute", "its forward and backward take --severity times as long", "slow rank",
       "device"},
      {"slow-data", "its data takes 20 x --severity as long", "slow data", "data"},
      {"slow-receiver", "it sleeps --severity steps before it sends on", "slow rank", "program"},
      {"not-finite", "its loss is not finite in one step", "not finite", "program"},
  };
  return faults;
}

const FaultRow* FindFault(absl::string_view name) {
  for (const FaultRow& row : Faults()) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

absl::Status RunEmulatedRank(const Settings& settings, const EmulationOptions& options) {
  WEFT_ASSIGN_OR_RETURN(job::Joined joined, job::Join(settings, "weft-fault"));
  return Rank(std::move(joined), options).Run();
}

}  // namespace weft::fault
