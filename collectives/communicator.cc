#include "collectives/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"
#include "collectives/group_place.h"
#include "collectives/group_settings.h"
#include "collectives/planner/concurrent.h"
#include "collectives/planner/planner.h"
#include "collectives/reduce.h"
#include "collectives/short_name.h"
#include "collectives/verify.h"
#include "collectives/works.h"

namespace weft::collectives {
namespace {

uint32_t HashName(absl::string_view name) {
  uint64_t hash = 0;
  for (char letter : name) {
    uint64_t state = hash ^ static_cast<unsigned char>(letter);
    hash = SplitMix64(state);
  }
  return static_cast<uint32_t>(hash >> 33);
}

// The parts of a buffer of `length` elements; none are given: all of it is one.
BufferCheck::Buffer BufferOf(const void* data, uint64_t length, const std::vector<uint64_t>& counts,
                             const std::vector<uint64_t>& offsets, size_t element) {
  BufferCheck::Buffer buffer{const_cast<void*>(data), length * element, {}};
  if (counts.empty()) buffer.parts.push_back({0, buffer.bytes});
  for (size_t i = 0; i < counts.size(); ++i) {
    buffer.parts.push_back({offsets[i] * element, counts[i] * element});
  }
  return buffer;
}

std::unique_ptr<BufferCheck> CheckOf(const CollectiveSpec& spec, const void* input, void* output,
                                     size_t element) {
  return std::make_unique<BufferCheck>(
      BufferOf(input, InputLength(spec), spec.input_counts, spec.input_offsets, element),
      BufferOf(output, OutputLength(spec), spec.output_counts, spec.output_offsets, element));
}

// Whether a rank may be done with a call once it has sent what it has to. It would not learn then
// that another rank calls differently, if its messages went before their receives: with a root, or
// where parts are empty, ranks need something of some others only. (AllToAllV sends empty parts.)
bool MayOnlySend(const CollectiveSpec& spec) {
  if (spec.kind != CollectiveKind::kAllGatherV) return HasRoot(spec.kind);
  return std::count(spec.output_counts.begin(), spec.output_counts.end(), 0) > 0;
}

// What a call ends with where its output is more than caches hold: what is written around them then
// costs two thirds of the memory traffic, and nobody finds the beginning of it in them anyway.
net::ReduceFn StreamFor(CollectiveKind kind, size_t output_bytes, DataType type, ReduceOp op) {
  static const size_t cache_bytes = [] {
    const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? static_cast<size_t>(bytes) : size_t{32} << 20;
  }();
  return Reduces(kind) && output_bytes > cache_bytes ? StreamingReduceFor(type, op) : nullptr;
}

class CommunicatorImpl final : public Communicator {
 public:
  CommunicatorImpl(std::shared_ptr<EndpointImpl> endpoint, std::shared_ptr<Group> group,
                   GroupSettings settings)
      : endpoint_(std::move(endpoint)),
        group_(std::move(group)),
        settings_(std::move(settings)),
        chunk_bytes_(static_cast<uint64_t>(endpoint_->costs().chunk_bytes)) {
    place_ = endpoint_->PlaceOf(group_->ranks);
    multicast_bytes_ = endpoint_->MulticastBytes(group_->ranks);
    const auto host = [this](Rank rank) { return endpoint_->host(rank); };
    groups_at_once_ = planner::GroupsAtOnce(endpoint_->mesh(), group_->ranks, host);
    others_at_once_ =
        planner::OthersAtOnce(endpoint_->mesh(), group_->ranks, endpoint_->axes_at_once(), host);
  }
  ~CommunicatorImpl() override { endpoint_->Leave(group_); }

  GroupRank rank() const override { return GroupRank(group_->rank); }
  int size() const override { return static_cast<int>(group_->ranks.size()); }
  const std::string& name() const override { return group_->name; }
  absl::Status status() const override {
    std::lock_guard<std::mutex> lock(group_->mutex);
    return group_->status;
  }
  absl::Status health() const override {
    std::lock_guard<std::mutex> lock(group_->mutex);
    const bool is_whole = group_->departed.empty() || !group_->status.ok();
    return is_whole ? group_->status : group_->departed.front().second;
  }

  WorkPtr AllReduce(const void* input, void* output, size_t count, DataType type,
                    ReduceOp op) override {
    return Run(Spec(CollectiveKind::kAllReduce, count), input, output, type, op);
  }
  WorkPtr AllGather(const void* input, void* output, size_t count, DataType type) override {
    return Run(Spec(CollectiveKind::kAllGather, count), input, output, type);
  }
  WorkPtr ReduceScatter(const void* input, void* output, size_t count, DataType type,
                        ReduceOp op) override {
    return Run(Spec(CollectiveKind::kReduceScatter, count), input, output, type, op);
  }
  WorkPtr Broadcast(const void* input, void* output, size_t count, DataType type,
                    GroupRank root) override {
    return Run(Spec(CollectiveKind::kBroadcast, count, root), input, output, type);
  }
  WorkPtr Reduce(const void* input, void* output, size_t count, DataType type, ReduceOp op,
                 GroupRank root) override {
    return Run(Spec(CollectiveKind::kReduce, count, root), input, output, type, op);
  }
  WorkPtr Gather(const void* input, void* output, size_t count, DataType type,
                 GroupRank root) override {
    return Run(Spec(CollectiveKind::kGather, count, root), input, output, type);
  }
  WorkPtr Scatter(const void* input, void* output, size_t count, DataType type,
                  GroupRank root) override {
    return Run(Spec(CollectiveKind::kScatter, count, root), input, output, type);
  }
  WorkPtr AllToAll(const void* input, void* output, size_t count, DataType type) override {
    return Run(Spec(CollectiveKind::kAllToAll, count), input, output, type);
  }
  WorkPtr AllToAllV(const void* input, absl::Span<const size_t> input_counts,
                    absl::Span<const size_t> input_offsets, void* output,
                    absl::Span<const size_t> output_counts, absl::Span<const size_t> output_offsets,
                    DataType type, size_t typical_count) override;
  WorkPtr AllGatherV(const void* input, void* output, absl::Span<const size_t> counts,
                     absl::Span<const size_t> output_offsets, DataType type) override;
  WorkPtr Barrier() override {
    return Run(Spec(CollectiveKind::kBarrier, 0), nullptr, nullptr, DataType::kUint8);
  }

  WorkPtr Send(const void* data, size_t bytes, GroupRank peer, uint32_t tag) override {
    return Message(true, const_cast<void*>(data), bytes, peer, tag);
  }
  WorkPtr Receive(void* data, size_t bytes, GroupRank peer, uint32_t tag) override {
    return Message(false, data, bytes, peer, tag);
  }
  WorkPtr ReceiveAny(void* data, size_t bytes, uint32_t tag) override {
    return Message(false, data, bytes, GroupRank(kAnyRank), tag);
  }
  void SetPriority(Priority priority) override {
    priority_.store(priority, std::memory_order_relaxed);
  }
  void Abort(absl::Status reason) override {
    endpoint_->Abort(group_, std::move(reason), /*says=*/false);
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Shrink(absl::Span<const GroupRank> excluded,
                                                       absl::string_view name) override;

 private:
  static constexpr size_t kPlansMax = 64;
  static constexpr int kAllRanks = -2, kAnyRank = -1;

  CollectiveSpec Spec(CollectiveKind kind, size_t count, GroupRank root = GroupRank(0)) const {
    CollectiveSpec spec;
    spec.kind = kind;
    spec.size = size();
    spec.rank = group_->rank;
    spec.root = root.value();
    spec.count = count;
    spec.place = place_;
    spec.multicast_bytes = multicast_bytes_;
    spec.groups_at_once = groups_at_once_;
    spec.others_at_once = others_at_once_;
    return spec;
  }
  WorkPtr Run(CollectiveSpec spec, const void* input, void* output, DataType type,
              ReduceOp op = ReduceOp::kSum);
  WorkPtr Message(bool sends, void* data, size_t bytes, GroupRank peer, uint32_t tag);
  absl::Status Check(const CollectiveSpec& spec, const void* input, const void* output,
                     DataType type, ReduceOp op) const;
  // With mutex_ held. The most recently used come first.
  absl::StatusOr<std::shared_ptr<PlanEntry>> PlanFor(CollectiveSpec&& spec, size_t element);
  // Fails the group if a rank that is needed has left. A collective needs all ranks but those that
  // have finished it, a message only the rank that it is for (>= 0) or any of them: one that has
  // finished stops no message between the others, and what it sent ahead can still be received.
  absl::Status Usable(int peer = kAllRanks, bool sends = true);

  std::shared_ptr<EndpointImpl> endpoint_;
  std::shared_ptr<Group> group_;
  const GroupSettings settings_;
  const uint64_t chunk_bytes_;
  std::shared_ptr<const GroupPlace> place_;  // null: one host
  uint64_t multicast_bytes_ = 0;             // 0: no rings
  int groups_at_once_ = 1, others_at_once_ = 0;
  std::mutex mutex_;         // orders calls; before group_->mutex
  uint64_t ring_calls_ = 0;  // under mutex_: those that go by rings
  std::atomic<Priority> priority_{Priority::kNormal};
  std::list<std::pair<size_t, std::shared_ptr<PlanEntry>>> plans_;  // by size of an element
};

absl::Status CommunicatorImpl::Check(const CollectiveSpec& spec, const void* input,
                                     const void* output, DataType type, ReduceOp op) const {
  if (Reduces(spec.kind) && !Supports(op, type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no operator ", ToString(op), " for numbers of type ", ToString(type)));
  }
  if (spec.root < 0 || spec.root >= spec.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("root ", spec.root, " of a group of ", spec.size, " ranks"));
  }
  if ((input == nullptr && InputLength(spec) > 0) ||
      (output == nullptr && OutputLength(spec) > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(ToString(spec.kind), ": a buffer is null"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<PlanEntry>> CommunicatorImpl::PlanFor(CollectiveSpec&& spec,
                                                                     size_t element) {
  for (auto at = plans_.begin(); at != plans_.end(); ++at) {
    if (at->first != element || !(at->second->spec == spec)) continue;
    if (at != plans_.begin()) plans_.splice(plans_.begin(), plans_, at);
    return plans_.front().second;
  }
  auto entry = std::make_shared<PlanEntry>();
  entry->choice = planner::ChoosePlan(spec, element, endpoint_->costs(),
                                      settings_.forced.For(spec, element, group_->name));
  const Algorithm& algorithm = *entry->choice.algorithm;
  CollectiveSpec planned = planner::SpecOf(entry->choice, spec);
  // What others send in AllToAllV is not known here.
  if (settings_.verify_schedules && spec.kind != CollectiveKind::kAllToAllV) {
    std::vector<CollectiveSpec> specs(static_cast<size_t>(spec.size), planned);
    std::vector<RankSchedule> schedules;
    for (int r = 0; r < spec.size; ++r) {
      specs[static_cast<size_t>(r)].rank = r;
      schedules.push_back(algorithm.build(specs[static_cast<size_t>(r)]));
    }
    WEFT_RETURN_IF_ERROR(VerifySchedules(specs, schedules));
  }
  entry->plan = std::make_shared<Plan>(algorithm.build(planned));
  if (&algorithm == &kMulticast && algorithm.fits(planned, element)) {
    auto multicast = std::make_shared<MulticastPlan>(planned, element);
    if (multicast->has_messages) entry->multicast = std::move(multicast);
  }
  entry->spec = std::move(spec);
  plans_.emplace_front(element, entry);
  if (plans_.size() > kPlansMax) plans_.pop_back();
  return entry;
}

absl::Status CommunicatorImpl::Usable(int peer, bool sends) {
  absl::Status departure;
  {
    std::lock_guard<std::mutex> lock(group_->mutex);
    if (!group_->status.ok()) return group_->status;
    const bool some_are_there = group_->departed.size() + 1 < group_->ranks.size();
    for (const auto& [rank, gone] : group_->departed) {
      if (peer == kAnyRank && some_are_there) break;
      if (peer == kAllRanks && group_->HasFinished(rank, group_->next_sequence)) continue;
      if (peer >= 0 && group_->ranks[static_cast<size_t>(peer)] != rank) continue;
      if (peer >= 0 && !sends && group_->left[static_cast<size_t>(peer)].has_value()) continue;
      departure = gone;
      break;
    }
  }
  if (departure.ok()) return absl::OkStatus();
  // The others may wait for us: they shall hear of the rank that is gone, not of us.
  endpoint_->Abort(group_, departure, /*says=*/true);
  std::lock_guard<std::mutex> lock(group_->mutex);
  return group_->status;
}

WorkPtr CommunicatorImpl::Run(CollectiveSpec spec, const void* input, void* output, DataType type,
                              ReduceOp op) {
  const int64_t start_ns = SystemClock::Nanoseconds();
  if (absl::Status status = Check(spec, input, output, type, op); !status.ok()) {
    return Finished(std::move(status));
  }
  const size_t element = SizeOf(type);
  spec.chunk = std::max<uint64_t>(chunk_bytes_ / element, 1);
  spec.average = Reduces(spec.kind) && op == ReduceOp::kAverage;
  spec.rounds_once = Reduces(spec.kind) && ReduceAllFor(type, op) != nullptr;
  const uint64_t input_length = InputLength(spec), output_length = OutputLength(spec);
  spec.in_place =
      input_length > 0 && output_length > 0 &&
      static_cast<const std::byte*>(input) ==
          static_cast<const std::byte*>(output) + InputShift(spec) * static_cast<int64_t>(element);
  Descriptor descriptor{
      .kind = spec.kind, .type = type, .op = op, .root = spec.root, .count = spec.count};
  if (spec.kind == CollectiveKind::kAllGatherV) {
    for (uint64_t count : spec.output_counts) {
      uint64_t state = descriptor.counts_hash ^ count;
      descriptor.counts_hash = SplitMix64(state);
      descriptor.count += count;
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status status = Usable(); !status.ok()) return Finished(std::move(status));
  auto planned = PlanFor(std::move(spec), element);
  if (!planned.ok()) return Finished(planned.status());
  PlanEntry& entry = **planned;
  if (entry.called.algorithm.empty() || entry.called.type != type || entry.called.op != op) {
    // Ranks that do the same by rings and by links do not meet.
    descriptor.algorithm =
        absl::StrCat(entry.choice.ToText(), entry.multicast != nullptr ? " by rings" : "");
    entry.check = descriptor.Hash();
    entry.called = std::move(descriptor);
  }
  uint32_t sequence;
  {
    std::lock_guard<std::mutex> group_lock(group_->mutex);
    sequence = group_->next_sequence++;
    group_->history[sequence % Group::kHistory] = entry.called;
  }
  const Priority priority = priority_.load(std::memory_order_relaxed);
  Invocation invocation{.input = input,
                        .output = output,
                        .input_length = input_length,
                        .output_length = output_length,
                        .element = element,
                        .divisor = size(),
                        .reduce = Reduces(entry.spec.kind) ? ReduceFor(type, op) : nullptr,
                        .stream = StreamFor(entry.spec.kind, output_length * element, type, op),
                        .reduce_all = Reduces(entry.spec.kind) ? ReduceAllFor(type, op) : nullptr,
                        .scale = ScaleFor(type),
                        .sends_wait = MayOnlySend(entry.spec),
                        .urgency = static_cast<uint8_t>(priority),
                        .key = {LinkTag(group_->id, sequence, /*is_message=*/false), entry.check},
                        .group = group_->peers};
  if (entry.multicast != nullptr) {
    invocation.rings = group_->rings.get();
    invocation.ring_call = ring_calls_++;
  }
  auto work = std::make_shared<CollectiveWork>(endpoint_.get(), group_, start_ns,
                                               *std::move(planned), invocation, sequence, type, op);
  work->priority = priority;
  if (settings_.verify_buffers) work->Verify(CheckOf(entry.spec, input, output, element));
  endpoint_->Start(work);
  return work;
}

WorkPtr CommunicatorImpl::AllGatherV(const void* input, void* output,
                                     absl::Span<const size_t> counts,
                                     absl::Span<const size_t> output_offsets, DataType type) {
  const size_t n = static_cast<size_t>(size());
  if (counts.size() != n || output_offsets.size() != n) {
    return Finished(absl::InvalidArgumentError("all_gather_v: one count and one offset a rank"));
  }
  CollectiveSpec spec = Spec(CollectiveKind::kAllGatherV, 0);
  spec.output_counts.assign(counts.begin(), counts.end());
  spec.output_offsets.assign(output_offsets.begin(), output_offsets.end());
  return Run(std::move(spec), input, output, type);
}

WorkPtr CommunicatorImpl::AllToAllV(const void* input, absl::Span<const size_t> input_counts,
                                    absl::Span<const size_t> input_offsets, void* output,
                                    absl::Span<const size_t> output_counts,
                                    absl::Span<const size_t> output_offsets, DataType type,
                                    size_t typical_count) {
  const size_t n = static_cast<size_t>(size());
  const size_t own = static_cast<size_t>(group_->rank);
  if (input_counts.size() != n || input_offsets.size() != n || output_counts.size() != n ||
      output_offsets.size() != n) {
    return Finished(absl::InvalidArgumentError("all_to_all_v: counts and offsets for each rank"));
  }
  if (input_counts[own] != output_counts[own]) {
    return Finished(absl::InvalidArgumentError(
        absl::StrCat("all_to_all_v: rank ", own, " sends itself ", input_counts[own],
                     " elements, but expects ", output_counts[own])));
  }
  CollectiveSpec spec = Spec(CollectiveKind::kAllToAllV, typical_count);
  spec.input_counts.assign(input_counts.begin(), input_counts.end());
  spec.input_offsets.assign(input_offsets.begin(), input_offsets.end());
  spec.output_counts.assign(output_counts.begin(), output_counts.end());
  spec.output_offsets.assign(output_offsets.begin(), output_offsets.end());
  // An empty part has no place: its offset may lie behind the end of a buffer.
  for (size_t i = 0; i < n; ++i) {
    if (spec.input_counts[i] == 0) spec.input_offsets[i] = 0;
    if (spec.output_counts[i] == 0) spec.output_offsets[i] = 0;
  }
  return Run(std::move(spec), input, output, type);
}

WorkPtr CommunicatorImpl::Message(bool sends, void* data, size_t bytes, GroupRank peer,
                                  uint32_t tag) {
  const int64_t start_ns = SystemClock::Nanoseconds();
  const bool any = !sends && peer.value() == kAnyRank && size() > 1;
  if (!any && (peer.value() < 0 || peer.value() >= size() || peer.value() == group_->rank)) {
    return Finished(absl::InvalidArgumentError(
        absl::StrCat(sends ? "send to" : "receive from", " rank ", peer.value(), " of a group of ",
                     size(), " by rank ", group_->rank)));
  }
  if (data == nullptr && bytes > 0) {
    return Finished(absl::InvalidArgumentError("send or receive: the buffer is null"));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (absl::Status status = Usable(peer.value(), sends); !status.ok()) {
    return Finished(std::move(status));
  }
  auto work = std::make_shared<MessageWork>(endpoint_.get(), group_, start_ns, sends, data, bytes,
                                            peer.value(), tag);
  work->priority = priority_.load(std::memory_order_relaxed);
  if (settings_.verify_buffers) {
    const BufferCheck::Buffer buffer{data, bytes, {{0, bytes}}};
    work->Verify(sends ? std::make_unique<BufferCheck>(buffer, BufferCheck::Buffer{})
                       : std::make_unique<BufferCheck>(BufferCheck::Buffer{}, buffer));
  }
  endpoint_->Start(work);
  return work;
}

absl::StatusOr<std::unique_ptr<Communicator>> CommunicatorImpl::Shrink(
    absl::Span<const GroupRank> excluded, absl::string_view name) {
  std::vector<Rank> ranks;
  std::vector<int> kept, out;
  for (GroupRank rank : excluded) {
    if (rank.value() < 0 || rank.value() >= size() || rank.value() == group_->rank) {
      return absl::InvalidArgumentError(absl::StrCat("shrink: rank ", rank.value(),
                                                     " cannot be excluded by rank ", group_->rank,
                                                     " from a group of ", size()));
    }
  }
  for (int rank = 0; rank < size(); ++rank) {
    const bool leaves =
        std::find(excluded.begin(), excluded.end(), GroupRank(rank)) != excluded.end();
    (leaves ? out : kept).push_back(rank);
    if (!leaves) ranks.push_back(group_->ranks[static_cast<size_t>(rank)]);
  }
  const std::string chosen =
      name.empty() ? ShortName(absl::StrCat(group_->name, " without ",
                                            out.empty() ? "anyone" : absl::StrJoin(out, ",")))
                   : std::string(name);
  const absl::Status met = endpoint_->PrepareShrink(group_, chosen, kept);
  if (!met.ok()) {
    return Annotate(met, absl::StrCat("shrink communicator \"", group_->name, "\""));
  }
  return CreateCommunicator(endpoint_, chosen, std::move(ranks), settings_);
}

constexpr absl::string_view kGroupSettings[] = {"collective.timeout", "collective.algorithm",
                                                "collective.algorithm_by_kind", "verify.schedules",
                                                "verify.buffers"};

}  // namespace

bool GroupSettings::Has(absl::string_view name) {
  return std::find(std::begin(kGroupSettings), std::end(kGroupSettings), name) !=
         std::end(kGroupSettings);
}

std::string GroupSettings::Names() { return absl::StrJoin(kGroupSettings, ", "); }

absl::StatusOr<GroupSettings> GroupSettings::From(const Settings& settings) {
  GroupSettings own;
  own.timeout = settings.Duration("collective.timeout");
  WEFT_ASSIGN_OR_RETURN(own.forced, planner::Forced::Create(settings));
  own.verify_schedules = settings.Bool("verify.schedules");
  own.verify_buffers = settings.Bool("verify.buffers");
  return own;
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(
    std::shared_ptr<Endpoint> endpoint, absl::string_view name, std::vector<Rank> ranks) {
  GroupSettings settings = static_cast<EndpointImpl*>(endpoint.get())->group_settings();
  return CreateCommunicator(std::move(endpoint), name, std::move(ranks), std::move(settings));
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(std::shared_ptr<Endpoint> endpoint,
                                                                 absl::string_view name,
                                                                 std::vector<Rank> ranks,
                                                                 GroupSettings settings) {
  auto own = std::static_pointer_cast<EndpointImpl>(std::move(endpoint));
  auto group = std::make_shared<Group>();
  group->name = std::string(name);
  const int64_t epoch = own->epoch();
  group->id = HashName(epoch == 0 ? std::string(name) : absl::StrCat(name, " of ", epoch));
  group->rank = -1;
  std::vector<Rank> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].value() < 0 || ranks[r].value() >= own->world_size() || twice) {
      return absl::InvalidArgumentError(absl::StrCat("communicator \"", name,
                                                     "\": ranks must differ and lie between 0 and ",
                                                     own->world_size() - 1));
    }
    if (ranks[r] == own->rank()) group->rank = static_cast<int>(r);
  }
  if (group->rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("communicator \"", name, "\" lacks this rank, ", own->rank().value()));
  }
  group->ranks = std::move(ranks);
  group->timeout = settings.timeout;
  WEFT_RETURN_IF_ERROR(own->Join(group));
  return std::unique_ptr<Communicator>(
      std::make_unique<CommunicatorImpl>(std::move(own), std::move(group), std::move(settings)));
}

}  // namespace weft::collectives
