#include "net/verbs/rails.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failure.h"
#include "base/log.h"
#include "base/status.h"
#include "topology/ecmp/roce.h"

namespace weft::net {
namespace {

constexpr int kQueueDepthMax = 16384;
constexpr size_t kPollMax = 32;
constexpr int kPollsPerTurn = 8;  // of one queue, so that the others get theirs
constexpr uint32_t kReceiveBit = 1u << 31;
constexpr int kSharedRailShift = 24;  // the rail, in ids of shared receives
constexpr uint32_t kInlineWanted = 256;
// Destroyed and connected at once; more wait for one that is through. Those to hosts that do not
// answer should hold up few others.
constexpr size_t kRetiringMost = 8, kConnectingMost = 32;

absl::Status ConnectNow(NicQueuePair& pair, const NicPath& path) {
  WEFT_RETURN_IF_ERROR(pair.ToReadyToReceive(path));
  return pair.ToReadyToSend(path);
}

}  // namespace

// ---- A queue pair

// Shared with the thread that connects it.
struct RailQueuePair::Connecting {
  std::mutex mutex;
  bool done = false;
  std::unique_ptr<NicQueuePair> abandoned;  // its user was done with it before
};

RailQueuePair::~RailQueuePair() {
  rails_.users_.erase(id_);
  --rails_[rail_].queues[queue_].pairs;
  ++rails_[rail_].arrivals;
  if (connecting_ != nullptr) {
    std::lock_guard<std::mutex> lock(connecting_->mutex);
    // Nothing comes over it meanwhile: the other side has not been told that it is connected.
    if (!connecting_->done) connecting_->abandoned = std::move(pair_);
    if (pair_ == nullptr) return;
  }
  if (rails_[rail_].receives != nullptr) {
    // A device that resets it drops what nobody has polled, and nobody would hear which of the
    // shared receives it took (InfiniBand specification, vol. 1, 10.3.1).
    pair_->ToError().IgnoreError();
    rails_.DeferCompletions(rail_, queue_);
  }
  // One that cannot be reset may still write: that is waited for.
  if (!pair_->ToReset().ok()) return;
  rails_.retirement_->Submit([pair = std::move(pair_)]() mutable { pair.reset(); });
}

void RailQueuePair::Connect(const NicPath& path) {
  if (!path.ethernet || !rails_[rail_].device->ResolvesAddresses()) {
    const Rails::User user = rails_.users_.at(id_);
    return user.user->OnConnected(user.lane, ConnectNow(*pair_, path));
  }
  connecting_ = std::make_shared<Connecting>();
  rails_.connecting_->Submit(
      [shared = connecting_, &rails = rails_, pair = pair_.get(), id = id_, path] {
        std::unique_lock<std::mutex> lock(shared->mutex);
        absl::Status status;
        if (shared->abandoned == nullptr) {
          lock.unlock();
          status = ConnectNow(*pair, path);
          lock.lock();
        }
        if (shared->abandoned != nullptr) {
          shared->abandoned->ToReset().IgnoreError();
          return shared->abandoned.reset();
        }
        shared->done = true;
        lock.unlock();
        rails.NoteConnected(id, std::move(status));
      });
}

absl::Status RailQueuePair::PostReceives(uint32_t first, int count) {
  const uint64_t high = uint64_t{id_} << 32 | kReceiveBit;
  const uint32_t begin = first & kNumberMask;
  const auto before_wrap = static_cast<int>(
      std::min<uint64_t>(static_cast<uint64_t>(count), uint64_t{kNumberMask} + 1 - begin));
  WEFT_RETURN_IF_ERROR(pair_->PostReceives(high | begin, before_wrap));
  if (before_wrap == count) return absl::OkStatus();
  return pair_->PostReceives(high, count - before_wrap);
}

std::string Rail::Describe() const {
  return absl::StrCat(device->name(), " port ", port.number, ", GID ", gid.gid.index, " ",
                      GidText(gid.gid.gid), " (", gid.why, "), MTU ", port.mtu, ", ", port.gbps,
                      " Gbit/s");
}

// ---- Opening

absl::StatusOr<std::unique_ptr<Rails>> Rails::Open(std::unique_ptr<Nic> nic,
                                                   const VerbsOptions& options,
                                                   const PairLayout& layout) {
  std::unique_ptr<Rails> out(new Rails(options, layout));
  out->nic_ = std::move(nic);
  out->found_.resize(kPollMax);
  out->connected_fd_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!out->connected_fd_) return ErrnoStatus(errno, "make an eventfd");
  out->StartThreadPools();
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, out->nic_->DeviceNames());
  std::sort(names.begin(), names.end());
  std::string reasons;
  for (const std::string& name : names) {
    // Without a word about devices, the first that is good; with one, all that fit.
    if (options.devices.empty() && !out->rails_.empty()) break;
    WEFT_RETURN_IF_ERROR(out->OpenRail(name, &reasons));
  }
  if (out->rails_.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "no RDMA device can be used", options.devices.empty() ? "" : " (", options.devices_origin,
        options.devices.empty() ? "" : absl::StrCat("=\"", options.devices, "\")"), ": ",
        reasons.empty() ? "there is none; is a driver loaded, and does this container have "
                          "/dev/infiniband?"
                        : reasons));
  }
  std::vector<NicDevice*> devices;
  for (Rail& rail : out->rails_) {
    devices.push_back(rail.device.get());
    WEFT_LOG_DEBUG("verbs: rail ", devices.size() - 1, ": ", rail.Describe());
  }
  out->memory_ = std::make_unique<MemoryCache>(std::move(devices), options.relaxed_ordering);
  return out;
}

absl::Status ExaminePort(NicDevice& device, int number, const VerbsOptions& options, Rail* rail) {
  WEFT_ASSIGN_OR_RETURN(rail->port, device.QueryPort(number));
  WEFT_ASSIGN_OR_RETURN(const std::vector<NicGid> gids, device.QueryGids(number));
  if (!rail->port.active) {
    return absl::UnavailableError(absl::StrCat("it is ", rail->port.state));
  }
  WEFT_ASSIGN_OR_RETURN(rail->gid, ChooseGid(gids, rail->port.ethernet, options));
  return absl::OkStatus();
}

// All ports of the device that are wanted and can be used; why the others cannot goes to `reasons`.
absl::Status Rails::OpenRail(const std::string& name, std::string* reasons) {
  const auto because = [&](int port, absl::string_view why) {
    absl::StrAppend(reasons, reasons->empty() ? "" : "; ", name,
                    port > 0 ? absl::StrCat(" port ", port) : "", ": ", why);
  };
  auto device = nic_->Open(name);
  if (!device.ok()) {
    because(0, device.status().message());
    return absl::OkStatus();
  }
  auto limits = (*device)->Limits();
  if (!limits.ok()) {
    because(0, limits.status().message());
    return absl::OkStatus();
  }
  for (int number = 1; number <= limits->ports; ++number) {
    if (!DeviceIsWanted(options_.devices, name, number)) {
      because(number, absl::StrCat(options_.devices_origin, " leaves it out"));
      continue;
    }
    if (*device == nullptr) {  // a second port: a context of its own
      device = nic_->Open(name);
      if (!device.ok()) return device.status();
    }
    Rail rail;
    absl::Status usable = ExaminePort(**device, number, options_, &rail);
    if (!usable.ok()) {
      because(number, usable.message());
      continue;
    }
    if (size() == kVerbsRailsMax) {
      return absl::InvalidArgumentError(absl::StrCat("more than ", kVerbsRailsMax, " ports fit ",
                                                     options_.devices_origin, "=\"",
                                                     options_.devices, "\"; name fewer"));
    }
    rail.limits = *limits;
    rail.device = *std::exchange(device, nullptr);
    rails_.push_back(std::move(rail));
    if (options_.devices.empty()) break;
  }
  return absl::OkStatus();
}

// Waits for the work of the pools that were there before.
void Rails::StartThreadPools() {
  connecting_ = std::make_unique<ThreadPool>(kConnectingMost);
  retirement_ = std::make_unique<ThreadPool>(kRetiringMost);
}

Rails::~Rails() {
  connecting_.reset();
  retirement_.reset();
  memory_.reset();
}

uint64_t Rails::SharedReceiveId(int rail, uint32_t number) {
  return kReceiveBit | static_cast<uint32_t>(rail) << kSharedRailShift | number;
}

absl::Status Rails::ShareReceives(SharedReceiveUser* user, uint32_t count) {
  shared_user_ = user;
  shared_receives_ = count;
  for (Rail& rail : rails_) {
    WEFT_ASSIGN_OR_RETURN(rail.receives, rail.device->CreateReceiveQueue(count));
  }
  return absl::OkStatus();
}

void Rails::DropSharedReceives() {
  StartThreadPools();
  for (Rail& rail : rails_) rail.receives.reset();
}

absl::StatusOr<size_t> Rails::QueueWithRoom(int rail) {
  Rail& of = (*this)[rail];
  for (size_t i = 0; i < of.queues.size(); ++i) {
    if (!of.queues[i].lost && of.queues[i].pairs < of.pairs_per_queue) return i;
  }
  const int depth = std::min(kQueueDepthMax, of.limits.completions);
  // Whatever is shared may all complete on one.
  const uint32_t room =
      static_cast<uint32_t>(depth) - std::min(static_cast<uint32_t>(depth), shared_receives_);
  of.pairs_per_queue = std::max(1u, room / CompletionsOfPair());
  const uint32_t wanted = shared_receives_ + of.pairs_per_queue * CompletionsOfPair();
  WEFT_ASSIGN_OR_RETURN(auto queue, of.device->CreateCompletionQueue(static_cast<int>(wanted)));
  of.queues.push_back({std::move(queue), 0, false});
  return of.queues.size() - 1;
}

absl::StatusOr<std::unique_ptr<RailQueuePair>> Rails::MakeQueuePair(int rail, QueuePairUser* user,
                                                                    int lane) {
  Rail& of = (*this)[rail];
  if (of.lost) {
    return WithFailure(absl::UnavailableError(absl::StrCat(of.device->name(), " has failed")),
                       {.scope = FailureScope::kDevice, .device = std::string(of.device->name())});
  }
  // Addresses move: after a port was down, in containers, with the interface.
  WEFT_ASSIGN_OR_RETURN(of.port, of.device->QueryPort(of.port.number));
  WEFT_ASSIGN_OR_RETURN(auto gids, of.device->QueryGids(of.port.number));
  WEFT_ASSIGN_OR_RETURN(of.gid, ChooseGid(gids, of.port.ethernet, options_));
  of.port_down = !of.port.active;
  WEFT_ASSIGN_OR_RETURN(const size_t queue, QueueWithRoom(rail));
  NicQueuePairOptions wanted;
  wanted.completions = of.queues[queue].queue.get();
  wanted.service = layout_.service;
  wanted.send_depth = layout_.send_depth;
  wanted.receives = of.receives.get();
  const bool has_own = of.receives == nullptr;
  if (has_own) wanted.receive_depth = layout_.receive_depth, wanted.inline_bytes = kInlineWanted;
  WEFT_ASSIGN_OR_RETURN(auto pair, of.device->CreateQueuePair(&wanted));
  while (users_.count(next_id_) > 0 || next_id_ == 0) ++next_id_;
  const uint32_t id = next_id_++;
  users_[id] = {user, lane, rail, queue, pair->number()};
  ++of.queues[queue].pairs;
  auto out =
      std::make_unique<RailQueuePair>(*this, rail, queue, id, std::move(pair), wanted.inline_bytes);
  WEFT_RETURN_IF_ERROR(out->pair().ToInit(of.port.number, options_.pkey_index));
  if (has_own) {
    WEFT_RETURN_IF_ERROR(out->PostReceives(0, static_cast<int>(layout_.receive_depth)));
  }
  return out;
}

NicPath Rails::PathFrom(int rail, uint16_t source_port) {
  const Rail& from = (*this)[rail];
  NicPath path;
  path.port = from.port.number;
  path.ethernet = from.port.ethernet;
  path.global = from.port.ethernet || from.port.needs_global;
  path.mtu = from.port.mtu;
  path.gid_index = from.gid.gid.index;
  path.traffic_class = options_.traffic_class;
  path.service_level = options_.service_level;
  path.timeout = options_.timeout;
  path.retry_count = options_.retry_count;
  path.flow_label = topology::RoceFlowLabel(source_port);
  if (options_.mlx5dv_source_port && path.ethernet) path.udp_source_port = source_port;
  return path;
}

// ---- Completions and events

void Rails::HandOut(const NicCompletion& completion) {
  const auto low = static_cast<uint32_t>(completion.id);
  const auto high = static_cast<uint32_t>(completion.id >> 32);
  if (high == 0 && shared_user_ != nullptr) {
    constexpr uint32_t kMask = (1u << kSharedRailShift) - 1;
    const int rail = static_cast<int>((low & ~kReceiveBit) >> kSharedRailShift);
    return shared_user_->OnReceived(rail, low & kMask, completion);
  }
  auto found = users_.find(high);
  if (found == users_.end()) return;  // of a queue pair that is gone
  const User user = found->second;
  if (completion.receive) ++(*this)[user.rail].arrivals;
  user.user->OnCompletion(user.lane, (low & kReceiveBit) != 0, low & RailQueuePair::kNumberMask,
                          completion);
}

void Rails::NoteConnected(uint32_t id, absl::Status status) {
  // All at once, as HandOutConnected() takes them: a descriptor that stays readable over an empty
  // list would wake for ever.
  std::lock_guard<std::mutex> lock(connected_mutex_);
  connected_.push_back({id, std::move(status)});
  has_connected_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  (void)!write(connected_fd_.get(), &one, sizeof one);
}

bool Rails::HandOutConnected() {
  if (!has_connected_.load(std::memory_order_acquire)) return false;
  std::vector<Connected> connected;
  {
    std::lock_guard<std::mutex> lock(connected_mutex_);
    uint64_t count = 0;
    (void)!read(connected_fd_.get(), &count, sizeof count);
    connected.swap(connected_);
    has_connected_.store(false, std::memory_order_relaxed);
  }
  for (const Connected& one : connected) {
    auto found = users_.find(one.id);
    if (found == users_.end()) continue;
    const User user = found->second;
    user.user->OnConnected(user.lane, one.status);
  }
  return true;
}

bool Rails::Poll() {
  if (std::exchange(armed_, false)) {
    for (Rail& rail : rails_) rail.device->DrainCompletionEvents();
  }
  ++polls_;
  bool any = HandOutConnected(), emptied = true;
  any = any || !deferred_.empty();
  for (const NicCompletion& one : std::exchange(deferred_, {})) HandOut(one);
  for (size_t r = 0; r < rails_.size(); ++r) {
    for (size_t q = 0; q < rails_[r].queues.size(); ++q) {
      for (int round = 0; round < kPollsPerTurn; ++round) {
        if (rails_[r].queues[q].lost) break;
        auto count = rails_[r].queues[q].queue->Poll(absl::MakeSpan(found_));
        if (!count.ok()) {
          rails_[r].queues[q].lost = true;
          Lose([&](const User& u) { return u.rail == static_cast<int>(r) && u.queue == q; },
               std::string(count.status().message()));
          break;
        }
        any = any || *count > 0;
        for (size_t i = 0; i < *count; ++i) HandOut(found_[i]);
        if (*count < found_.size()) break;
        emptied = emptied && round + 1 < kPollsPerTurn;
      }
    }
  }
  if (emptied && deferred_.empty()) emptied_ = polls_;
  return any;
}

// A queue that never runs empty has still handed out all that it held then.
bool Rails::HandedOut(uint64_t mark) const {
  return emptied_ > mark || polls_ > mark + kQueueDepthMax / (kPollMax * kPollsPerTurn);
}

void Rails::DeferCompletions(int rail, size_t queue) {
  Rail::Queue& from = (*this)[rail].queues[queue];
  std::array<NicCompletion, kPollMax> found;
  for (int round = 0; round < kQueueDepthMax / static_cast<int>(kPollMax); ++round) {
    if (from.lost) return;
    auto count = from.queue->Poll(absl::MakeSpan(found));
    if (!count.ok()) return;  // Poll() finds out
    deferred_.insert(deferred_.end(), found.begin(),
                     found.begin() + static_cast<std::ptrdiff_t>(*count));
    if (*count < found.size()) return;
  }
}

bool Rails::Arm() {
  armed_ = true;
  std::array<NicCompletion, kPollMax> found;
  for (Rail& rail : rails_) {
    for (Rail::Queue& queue : rail.queues) {
      if (queue.lost || queue.pairs == 0) continue;
      if (!queue.queue->Arm().ok()) return false;  // so nobody sleeps, and Poll() finds out
      auto count = queue.queue->Poll(absl::MakeSpan(found));
      if (!count.ok()) return false;
      deferred_.insert(deferred_.end(), found.begin(),
                       found.begin() + static_cast<std::ptrdiff_t>(*count));
    }
  }
  return deferred_.empty();
}

// Telling a user may make and destroy queue pairs.
template <typename Which>
void Rails::Lose(const Which& which, const std::string& why) {
  std::vector<uint32_t> ids;
  for (const auto& [id, user] : users_) {
    if (which(user)) ids.push_back(id);
  }
  for (uint32_t id : ids) {
    auto found = users_.find(id);
    if (found == users_.end()) continue;
    const User user = found->second;
    user.user->OnQueuePairLost(user.lane, why);
  }
}

void Rails::TakeEvents(int index) {
  Rail& rail = (*this)[index];
  NicEvent event;
  while (rail.device->NextEvent(&event)) {
    const std::string& name = rail.device->name();
    switch (event.kind) {
      case NicEventKind::kPortUp:
      case NicEventKind::kPortDown:
        if (event.port != rail.port.number) break;
        rail.port_down = event.kind == NicEventKind::kPortDown;
        WEFT_LOG_WARN("verbs: ", name, " port ", event.port, " is ",
                      rail.port_down ? "down" : "up");
        break;
      case NicEventKind::kAddressChanged:
        WEFT_LOG_INFO("verbs: addresses of ", name, " port ", event.port,
                      " have changed; new queue pairs will use them");
        break;
      case NicEventKind::kQueuePairFatal:
        Lose([&](const User& u) { return u.rail == index && u.queue_pair == event.queue_pair; },
             absl::StrCat(name, " reports a fatal error of queue pair ", event.queue_pair));
        break;
      case NicEventKind::kCompletionQueueLost:
        // Which one is not said.
        for (Rail::Queue& queue : rail.queues) queue.lost = true;
        Lose([&](const User& u) { return u.rail == index; },
             absl::StrCat(name, " reports an overrun or failure of a completion queue"));
        break;
      case NicEventKind::kReceiveQueueLost:
      case NicEventKind::kDeviceLost:
        rail.lost = true;
        Lose([&](const User& u) { return u.rail == index; },
             absl::StrCat(name, " reports a fatal error of ",
                          event.kind == NicEventKind::kDeviceLost
                              ? "the device"
                              : "the receives that its queue pairs share",
                          "; look at dmesg"));
        break;
    }
  }
}

}  // namespace weft::net
