#include "trainer/groups/group.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/keep_registered.h"
#include "trainer/device/device.h"
#include "trainer/memory/memory.h"
#include "trainer/profile/work_time.h"

namespace weft::train {
namespace {

using collectives::DataType;
using collectives::GroupRank;
using collectives::Priority;
using collectives::ReduceOp;

absl::StatusOr<DataType> TypeOf(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kLong:
      return DataType::kInt64;
    case at::kByte:
      return DataType::kUint8;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("a group moves no tensors of ", at::toString(tensor.scalar_type())));
  }
}

size_t Count(const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

Pending Started(const std::shared_ptr<LeftTensors>& left, const char* name, const char* wait_name,
                const at::Tensor& whole) {
  Pending pending;
  pending.left = left;
  pending.name = name;
  pending.wait_name = wait_name;
  pending.start_ns = SystemClock::Nanoseconds();
  pending.bytes = static_cast<int64_t>(whole.nbytes());
  return pending;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> Group::Create(
    std::shared_ptr<collectives::Endpoint> endpoint, absl::string_view name,
    std::vector<Rank> ranks) {
  if (ranks.size() == 1) return std::make_unique<Group>();
  WEFT_ASSIGN_OR_RETURN(auto communicator,
                        collectives::Communicator::Create(endpoint, name, ranks));
  return std::unique_ptr<Group>(
      new Group(std::move(endpoint), std::move(communicator), name, std::move(ranks)));
}

Group::Group(std::shared_ptr<collectives::Endpoint> endpoint,
             std::unique_ptr<collectives::Communicator> communicator, absl::string_view name,
             std::vector<Rank> ranks)
    : Agreement(communicator.get(), std::move(ranks), endpoint->world_size()),
      endpoint_(std::move(endpoint)),
      communicator_(std::move(communicator)),
      name_(name) {}

at::Tensor Group::Zeros(int64_t elements, const at::TensorOptions& options) const {
  if (!options.device().is_cpu()) return at::zeros({elements}, options);
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  std::shared_ptr<std::byte> memory =
      endpoint_ == nullptr ? nullptr : endpoint_->Allocate(static_cast<size_t>(bytes));
  if (memory == nullptr) return at::zeros({elements}, type);
  AddTensorMemory(bytes);
  std::byte* data = memory.get();
  auto free = [memory = std::move(memory), bytes](void*) mutable {
    memory.reset();
    AddTensorMemory(-bytes);
  };
  return at::from_blob(data, {elements}, std::move(free), type);
}

std::shared_ptr<void> Group::KeepRegistered(const at::Tensor& tensor) const {
  if (endpoint_ == nullptr || !tensor.device().is_cpu()) return nullptr;
  return collectives::KeepRegistered(endpoint_, tensor.data_ptr(), tensor.nbytes());
}

absl::Status Group::UseNccl(std::shared_ptr<NcclSession> session, WeftStream* current,
                            const NcclUse& use) {
  WatchNccl(session);
  if (size() == 1) return absl::OkStatus();
  std::string id;
  absl::Status made;
  if (rank() == 0) {
    absl::StatusOr<std::string> mine = session->MakeUniqueId();
    made = mine.status();
    if (mine.ok()) id = *std::move(mine);
  }
  WEFT_RETURN_IF_ERROR(Agree(made));
  WEFT_ASSIGN_OR_RETURN(id, FromFirst(id));
  absl::StatusOr<std::unique_ptr<NcclCollectives>> nccl = NcclCollectives::Create(
      std::move(session), name_, rank(), size(), id, current, use.high_priority);
  WEFT_RETURN_IF_ERROR(Agree(nccl.status()));
  nccl_ = *std::move(nccl);
  return use.exchanges_messages ? Agree(nccl_->ConnectForMessages()) : absl::OkStatus();
}

std::function<absl::Status()> Group::HealthCheck() const {
  return [weak = std::weak_ptr<collectives::Communicator>(communicator_)] {
    const std::shared_ptr<collectives::Communicator> communicator = weak.lock();
    return communicator == nullptr ? absl::OkStatus() : communicator->health();
  };
}

// Ids are made by the ranks that send. Every rank makes its channels in the order of the list, so
// that none waits for one that waits for it.
absl::Status Group::UseNcclChannels(std::shared_ptr<NcclSession> session, WeftStream* current,
                                    absl::Span<const Channel> channels) {
  WatchNccl(session);
  if (size() == 1) return absl::OkStatus();
  std::string mine;
  absl::Status status;
  for (const Channel& channel : channels) {
    if (channel.from != rank() || !status.ok()) continue;
    absl::StatusOr<std::string> id = session->MakeUniqueId();
    status = id.status();
    if (id.ok()) mine += *id;
  }
  WEFT_RETURN_IF_ERROR(Agree(status));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> ids, Gather(mine));
  std::vector<size_t> taken(ids.size());
  for (const Channel& channel : channels) {
    const auto from = static_cast<size_t>(channel.from);
    const std::string id = ids[from].substr(taken[from], kWeftNcclIdBytes);
    taken[from] += kWeftNcclIdBytes;
    if ((channel.from != rank() && channel.to != rank()) || !status.ok()) continue;
    absl::StatusOr<std::unique_ptr<NcclCollectives>> made = NcclCollectives::Create(
        session,
        absl::StrCat(name_, ", channel ", channel.number, " from ", channel.from, " to ",
                     channel.to),
        channel.to == rank() ? 1 : 0, /*size=*/2, id, current, /*high_priority=*/true);
    status = made.ok() ? (*made)->ConnectForMessages() : made.status();
    if (made.ok()) channels_[channel.number] = *std::move(made);
  }
  return Agree(status);
}

NcclCollectives* Group::ChannelOf(std::optional<uint32_t> channel, const at::Tensor& tensor) const {
  if (!channel.has_value() || !GoesDeviceWay(tensor)) return nullptr;
  const auto found = channels_.find(*channel);
  return found == channels_.end() ? nullptr : found->second.get();
}

bool Group::TakesNccl(const at::Tensor& tensor) const {
  return nccl_ != nullptr && GoesDeviceWay(tensor);
}

absl::StatusOr<Pending> Group::OnGpu(Pending pending, NcclCollectives& by,
                                     absl::StatusOr<NcclCollectives::Work> work,
                                     std::vector<at::Tensor> tensors) {
  WEFT_RETURN_IF_ERROR(work.status());
  pending.nccl = {&by, *work};
  pending.tensors = std::move(tensors);
  return pending;
}

absl::StatusOr<Pending> Group::LaunchedOnGpu(Pending pending,
                                             absl::StatusOr<NcclCollectives::Work> work,
                                             std::vector<at::Tensor> tensors) {
  WEFT_ASSIGN_OR_RETURN(Pending on_gpu,
                        OnGpu(std::move(pending), *nccl_, std::move(work), std::move(tensors)));
  return Launched(std::move(on_gpu));
}

double Group::TakeExposedSeconds() {
  const auto take = [this](NcclCollectives& nccl) {
    for (const NcclCollectives::Span& span : nccl.TakeSpans()) times().AddOnGpu(span);
  };
  if (nccl_ != nullptr) take(*nccl_);
  for (auto& [number, channel] : channels_) take(*channel);
  return times().TakeSeconds();
}

absl::StatusOr<Pending> Group::Launched(Pending pending) {
  if (!overlaps_) WEFT_RETURN_IF_ERROR(Wait(pending));
  return pending;
}

absl::StatusOr<Pending> Group::ReduceScatter(at::Tensor shard, at::Tensor full, ReduceOp op) {
  Pending pending = Started(left_, "reduce_scatter", "wait_reduce_scatter", full);
  if (size() == 1) return pending;
  WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(full));
  if (TakesNccl(full)) {
    auto work = nccl_->ReduceScatter(full.data_ptr(), shard.data_ptr(), Count(shard), type, op);
    return LaunchedOnGpu(std::move(pending), work, {std::move(shard), std::move(full)});
  }
  // Gradients: nobody waits for them before the step.
  communicator_->SetPriority(PriorityOf(Priority::kLow));
  at::Tensor from = Outgoing(full), to = Incoming(shard, pending.arrivals);
  pending.work =
      communicator_->ReduceScatter(from.data_ptr(), to.data_ptr(), Count(shard), type, op);
  pending.tensors = {std::move(to), std::move(from)};
  return Launched(std::move(pending));
}

absl::StatusOr<Pending> Group::ReduceScatterAverage(at::Tensor shard, at::Tensor full) {
  return ReduceScatter(std::move(shard), std::move(full), ReduceOp::kAverage);
}

absl::StatusOr<Pending> Group::ReduceScatterSum(at::Tensor shard, at::Tensor full) {
  return ReduceScatter(std::move(shard), std::move(full), ReduceOp::kSum);
}

absl::StatusOr<Pending> Group::AllGather(at::Tensor full, at::Tensor shard) {
  Pending pending = Started(left_, "all_gather", "wait_all_gather", full);
  if (size() == 1) return pending;
  WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(full));
  if (TakesNccl(full)) {
    auto work = nccl_->AllGather(shard.data_ptr(), full.data_ptr(), Count(shard), type);
    return LaunchedOnGpu(std::move(pending), work, {std::move(shard), std::move(full)});
  }
  communicator_->SetPriority(PriorityOf(Priority::kNormal));  // the next layer's parameters
  at::Tensor from = Outgoing(shard), to = Incoming(full, pending.arrivals);
  pending.work = communicator_->AllGather(from.data_ptr(), to.data_ptr(), Count(shard), type);
  pending.tensors = {std::move(from), std::move(to)};
  return Launched(std::move(pending));
}

absl::StatusOr<Pending> Group::AllReduceSum(at::Tensor tensor) {
  Pending pending = Started(left_, "all_reduce", "wait_all_reduce", tensor);
  if (size() == 1) return pending;
  WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(tensor));
  if (TakesNccl(tensor)) {
    auto work = nccl_->AllReduce(tensor.data_ptr(), Count(tensor), type, ReduceOp::kSum);
    return LaunchedOnGpu(std::move(pending), work, {std::move(tensor)});
  }
  communicator_->SetPriority(PriorityOf(Priority::kNormal));
  at::Tensor memory = InPlace(tensor, pending.arrivals);
  pending.work = communicator_->AllReduce(memory.data_ptr(), memory.data_ptr(), Count(tensor), type,
                                          ReduceOp::kSum);
  pending.tensors = {std::move(memory)};
  return Launched(std::move(pending));
}

absl::StatusOr<Pending> Group::AllToAll(at::Tensor received, at::Tensor sent) {
  Pending pending = Started(left_, "all_to_all", "wait_all_to_all", sent);
  if (size() == 1) {
    received.copy_(sent);
    return pending;
  }
  WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(sent));
  if (TakesNccl(sent)) {
    const size_t part = Count(sent) / static_cast<size_t>(size());
    const std::vector<size_t> counts(static_cast<size_t>(size()), part);
    std::vector<size_t> begins(counts.size());
    for (size_t i = 0; i < begins.size(); ++i) begins[i] = i * part;
    auto work = nccl_->Exchange("all_to_all", sent.data_ptr(), counts, begins, received.data_ptr(),
                                counts, begins, type);
    return LaunchedOnGpu(std::move(pending), work, {std::move(received), std::move(sent)});
  }
  communicator_->SetPriority(Priority::kHigh);  // attention has nothing to do without it
  at::Tensor from = Outgoing(sent), to = Incoming(received, pending.arrivals);
  pending.work = communicator_->AllToAll(from.data_ptr(), to.data_ptr(),
                                         Count(sent) / static_cast<size_t>(size()), type);
  pending.tensors = {std::move(to), std::move(from)};
  return Launched(std::move(pending));
}

absl::StatusOr<Pending> Group::ExchangeRows(at::Tensor received, const RowParts& received_parts,
                                            at::Tensor sent, const RowParts& sent_parts,
                                            int64_t typical_rows, const char* name,
                                            const char* wait_name) {
  Pending pending = Started(left_, name, wait_name, sent);
  if (size() == 1) {
    const auto rows = static_cast<int64_t>(sent_parts.counts[0]);
    received.narrow(0, static_cast<int64_t>(received_parts.begins[0]), rows)
        .copy_(sent.narrow(0, static_cast<int64_t>(sent_parts.begins[0]), rows));
    return pending;
  }
  WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(sent));
  const size_t width = static_cast<size_t>(sent.size(1));
  auto elements = [width](absl::Span<const size_t> rows) {
    std::vector<size_t> result(rows.begin(), rows.end());
    for (size_t& each : result) each *= width;
    return result;
  };
  const std::vector<size_t> sent_counts = elements(sent_parts.counts);
  const std::vector<size_t> sent_begins = elements(sent_parts.begins);
  const std::vector<size_t> received_counts = elements(received_parts.counts);
  const std::vector<size_t> received_begins = elements(received_parts.begins);
  pending.bytes = 0;
  for (size_t count : sent_counts) {
    pending.bytes += static_cast<int64_t>(count * sent.element_size());
  }
  if (TakesNccl(sent)) {
    auto work = nccl_->Exchange(name, sent.data_ptr(), sent_counts, sent_begins,
                                received.data_ptr(), received_counts, received_begins, type);
    return LaunchedOnGpu(std::move(pending), work, {std::move(received), std::move(sent)});
  }
  communicator_->SetPriority(Priority::kHigh);  // the next expert has nothing to do without it
  at::Tensor from = OutgoingRows(sent, sent_parts);
  at::Tensor to = IncomingRows(received, received_parts, pending.arrivals);
  pending.work = communicator_->AllToAllV(from.data_ptr(), sent_counts, sent_begins, to.data_ptr(),
                                          received_counts, received_begins, type,
                                          static_cast<size_t>(typical_rows) * width);
  pending.tensors = {std::move(to), std::move(from)};
  return Launched(std::move(pending));
}

absl::StatusOr<Pending> Group::Send(at::Tensor tensor, int peer, uint32_t tag,
                                    std::optional<uint32_t> channel) {
  Pending pending = Started(left_, "send", "wait_send", tensor);
  if (NcclCollectives* nccl = ChannelOf(channel, tensor)) {
    WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(tensor));
    auto work = nccl->Send(tensor.data_ptr(), Count(tensor), /*peer=*/1, type);
    return OnGpu(std::move(pending), *nccl, work, {std::move(tensor)});
  }
  communicator_->SetPriority(Priority::kHigh);  // the next stage has nothing to do without it
  at::Tensor from = Outgoing(tensor);
  pending.work = communicator_->Send(from.data_ptr(), from.nbytes(), GroupRank(peer), tag);
  pending.tensors = {std::move(from)};
  return pending;
}

absl::StatusOr<Pending> Group::Receive(at::Tensor tensor, int peer, uint32_t tag,
                                       std::optional<uint32_t> channel) {
  Pending pending = Started(left_, "receive", "wait_receive", tensor);
  if (NcclCollectives* nccl = ChannelOf(channel, tensor)) {
    WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(tensor));
    auto work = nccl->Receive(tensor.data_ptr(), Count(tensor), /*peer=*/0, type);
    return OnGpu(std::move(pending), *nccl, work, {std::move(tensor)});
  }
  communicator_->SetPriority(Priority::kHigh);
  at::Tensor to = Incoming(tensor, pending.arrivals);
  pending.work = communicator_->Receive(to.data_ptr(), to.nbytes(), GroupRank(peer), tag);
  pending.tensors = {std::move(to)};
  return pending;
}

absl::StatusOr<Group::Shifted> Group::Shift(at::Tensor received, int from, at::Tensor sent, int to,
                                            uint32_t tag) {
  Shifted shifted;
  if (!TakesNccl(sent)) {
    WEFT_ASSIGN_OR_RETURN(shifted.received, Receive(std::move(received), from, tag));
    WEFT_ASSIGN_OR_RETURN(shifted.sent, Send(std::move(sent), to, tag));
    return shifted;
  }
  Pending pending = Started(left_, "shift", "wait_shift", sent);
  WEFT_ASSIGN_OR_RETURN(DataType type, TypeOf(sent));
  const std::vector<size_t> begins(static_cast<size_t>(size()));
  std::vector<size_t> out = begins, in = begins;
  out[static_cast<size_t>(to)] = Count(sent);
  in[static_cast<size_t>(from)] = Count(received);
  auto work =
      nccl_->Exchange("shift", sent.data_ptr(), out, begins, received.data_ptr(), in, begins, type);
  WEFT_ASSIGN_OR_RETURN(shifted.received, OnGpu(std::move(pending), *nccl_, work,
                                                {std::move(received), std::move(sent)}));
  return shifted;
}

absl::Status Group::Wait(Pending& pending) {
  if (pending.nccl.has_value()) {
    const WorkScope scope(Work::kCommunication);
    const absl::Status status = pending.nccl->by->Wait(pending.nccl->work);
    pending.nccl.reset();
    pending.tensors.clear();
    return status;
  }
  if (pending.work == nullptr) return absl::OkStatus();
  const int64_t start = SystemClock::Nanoseconds();
  const collectives::WorkPtr work = std::move(pending.work);
  pending.work = nullptr;
  absl::Status status = Block(*work, pending.wait_name);
  pending.tensors.clear();
  const auto arrivals = std::move(pending.arrivals);
  pending.arrivals.clear();
  if (!status.ok()) return Annotate(status, pending.name);
  for (const auto& [host, tensor] : arrivals) tensor.copy_(host);
  times().AddWait(start, SystemClock::Nanoseconds(), pending.wait_name);
  times().AddCollective(pending.start_ns, work->end_ns(), pending.bytes, pending.name);
  return absl::OkStatus();
}

absl::StatusOr<bool> Group::TryFinish(Pending& pending) {
  if (pending.nccl.has_value()) {
    WEFT_ASSIGN_OR_RETURN(const bool ended, pending.nccl->by->TryFinish(pending.nccl->work));
    if (!ended) return false;
    pending.nccl.reset();
    pending.tensors.clear();
    return true;
  }
  if (!pending.done()) return false;
  WEFT_RETURN_IF_ERROR(Wait(pending));
  return true;
}

}  // namespace weft::train
