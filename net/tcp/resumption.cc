#include "net/tcp/resumption.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "net/tcp/link_session.h"

namespace weft::net {
namespace {

constexpr absl::Duration kProbeFirst = absl::Milliseconds(50);
constexpr absl::Duration kProbeLongest = absl::Seconds(1);

// Pauses between the attempts of a socket on another way to return to its planned way, and the time
// that one attempt has.
constexpr absl::Duration kReturnFirst = absl::Seconds(1);
constexpr absl::Duration kReturnLongest = absl::Seconds(16);
constexpr absl::Duration kReturnAttempt = absl::Milliseconds(500);
// Pause between two dials on a way that nothing speaks against.
constexpr absl::Duration kFollowPause = absl::Milliseconds(100);
// Time of the dials beside a socket that is silent: on its own way, and then on another.
constexpr absl::Duration kSameWayAttempt = absl::Milliseconds(100);
constexpr absl::Duration kOtherWayAttempt = absl::Milliseconds(500);

absl::Time Patience(const TcpContext& context, absl::Time now) {
  return now + kBusyPatience * context.tuning.dead_after;
}

// ---- The connecting end

class Redial final : public Resumption, private PollHandler {
 public:
  Redial(TcpContext& context, const ConnectorIdentity& identity, Rank peer, std::string address,
         const LinkParameters& parameters, const std::vector<topology::PathWay>& planned,
         const std::vector<topology::PathWay>& ways, ResumptionOwner& owner, absl::Time now)
      : PollHandler(*context.poller),
        context_(context),
        identity_(identity),
        peer_(peer),
        address_(std::move(address)),
        parameters_(parameters),
        owner_(&owner) {
    const absl::StatusOr<SocketAddress> target = SocketAddress::Parse(address_);
    for (size_t i = 0; i < parameters.count; ++i) {
      lanes_.push_back(std::make_unique<Lane>(*this, i));
      if (ways.empty() || !target.ok()) continue;
      target_ = ToIpAddress(*target);
      lanes_[i]->planned = context_.ways->Planned(planned[i % planned.size()]);
      lanes_[i]->way = ways[i % ways.size()];
      DialLater(*lanes_[i], now);
    }
  }

  void Begin(size_t index, absl::Time give_up, absl::Time now) override {
    End(index);
    Lane& lane = *lanes_[index];
    if (lane.way.has_value()) TakeAnotherWay(lane, now);
    Dial(lane, lane.way, give_up, now);
  }
  void Suspect(size_t index, absl::Time now) override {
    Lane& lane = *lanes_[index];
    if (lane.connector != nullptr) return;
    lane.beside = lane.way;
    if (lane.way.has_value()) {
      DialBeside(lane, Purpose::kSameWay, kSameWayAttempt, now);
    } else {
      DialBeside(lane, Purpose::kOtherWay, kOtherWayAttempt, now);
    }
  }
  void FollowPaths(absl::Time now) override {
    for (auto& lane : lanes_) {
      if (!lane->planned.has_value()) continue;
      const topology::PathWay way = context_.ways->Now(*lane->planned);
      if (way.choices == lane->way->choices) continue;
      if (context_.ways->HasFailed(Ends(), way)) {
        if (lane->try_at == absl::InfiniteFuture()) DialLater(*lane, now);
        continue;
      }
      if (lane->connector != nullptr) {
        // One that serves nothing yet, on a way that is no longer the right one, is given up.
        if (lane->purpose != Purpose::kReturn || lane->beside->choices == way.choices) continue;
        lane->connector->Cancel();
        lane->Retire();
        lane->purpose = Purpose::kSuccessor;
      }
      lane->try_at = now;
    }
    SetDeadlineOfLanes();
  }
  void End(size_t index) override {
    Lane& lane = *lanes_[index];
    lane.purpose = Purpose::kSuccessor;
    if (lane.connector == nullptr) return;
    lane.connector->Cancel();
    lane.Retire();
  }
  // Whoever takes the sockets over only waits for their end.
  void SetOwner(ResumptionOwner& owner) override {
    owner_ = &owner;
    for (auto& lane : lanes_) lane->planned.reset();
    SetDeadline(absl::InfiniteFuture());
  }
  void Close() override {
    for (size_t i = 0; i < lanes_.size(); ++i) End(i);
    SetDeadline(absl::InfiniteFuture());
  }

 private:
  // What a dial is for; kSuccessor alone replaces a socket that does not serve any more.
  enum class Purpose : uint8_t { kSuccessor, kReturn, kSameWay, kOtherWay };

  struct Lane final : public ConnectorOwner {
    Lane(Redial& all, size_t index) : all(all), index(index) {}
    void Retire() {
      epoch = connector->parameters().epoch;
      all.context_.poller->DeferDelete(std::move(connector));
    }
    void OnConnected(std::vector<FileDescriptor> sockets, std::vector<std::string> received,
                     absl::Time now) override {
      Retire();
      all.OnConnected(*this, now);
      all.owner_->OnNewSocket(index, epoch, std::move(sockets[0]), std::move(received[0]), now);
    }
    void OnConnectFailed(const absl::Status& why, absl::Time now) override {
      Retire();
      if (purpose != Purpose::kSuccessor) return all.OnFailedBeside(*this, now);
      if (absl::IsDeadlineExceeded(why)) return all.owner_->OnNotReplaced(index, why, now);
      all.owner_->OnNotReplaced(index, absl::UnavailableError(why.message()), now);
    }
    Redial& all;
    const size_t index;
    uint32_t epoch = 0;                             // of the last attempt
    std::optional<topology::PathWay> planned, way;  // none: not planned; taken now
    std::optional<topology::PathWay> beside;        // that a dial beside the socket takes
    Purpose purpose = Purpose::kSuccessor;          // of `connector`
    absl::Time try_at = absl::InfiniteFuture();     // to return
    absl::Duration pause = kReturnFirst;
    std::unique_ptr<Connector> connector;
  };

  void Dial(Lane& lane, const std::optional<topology::PathWay>& way, absl::Time give_up,
            absl::Time now) {
    LinkParameters parameters = parameters_;
    parameters.index = static_cast<uint16_t>(lane.index);
    parameters.epoch = lane.epoch;
    lane.connector = std::make_unique<Connector>(context_, identity_, peer_, lane);
    lane.connector->Resume(address_, parameters, give_up, Patience(context_, now), now,
                           way.has_value() ? &*way : nullptr);
  }

  void DialBeside(Lane& lane, Purpose purpose, absl::Duration limit, absl::Time now) {
    lane.purpose = purpose;
    Dial(lane, lane.beside, now + limit, now);
  }

  // The socket that the lane has serves on.
  void OnFailedBeside(Lane& lane, absl::Time now) {
    const Purpose purpose = std::exchange(lane.purpose, Purpose::kSuccessor);
    if (purpose == Purpose::kSameWay) {
      const absl::StatusOr<topology::PathWay> other = context_.ways.Another(
          ToIpAddress(context_.own_address), target_, absl::MakeConstSpan(&*lane.way, 1));
      if (other.ok() && !(other->choices == lane.way->choices)) {
        lane.beside = *other;
        return DialBeside(lane, Purpose::kOtherWay, kOtherWayAttempt, now);
      }
    }
    DialLater(lane, now);
  }

  void TakeAnotherWay(Lane& lane, absl::Time now) {
    absl::StatusOr<topology::PathWay> other =
        context_.ways.Instead(ToIpAddress(context_.own_address), target_, *lane.way, now);
    if (!other.ok()) return;
    WEFT_LOG_INFO(context_.name, ": socket ", lane.index, " to ", address_, " is lost on the way ",
                  lane.way->ToString(), "; its successor takes ", other->ToString());
    lane.way = *std::move(other);
  }

  void OnConnected(Lane& lane, absl::Time now) {
    const Purpose purpose = std::exchange(lane.purpose, Purpose::kSuccessor);
    if (!lane.way.has_value()) return;
    if (purpose == Purpose::kReturn) {
      const bool is_back = lane.beside->choices == lane.planned->choices;
      WEFT_LOG_INFO(context_.name, ": socket ", lane.index, " to ", address_,
                    is_back ? " goes back to its planned way " : " follows the plan to the way ",
                    lane.beside->ToString(), "; ", context_.ways->WhyNow());
      lane.way = lane.beside;
    } else if (purpose == Purpose::kOtherWay) {
      WEFT_LOG_INFO(context_.name, ": socket ", lane.index, " to ", address_,
                    " is silent on the way ", lane.way->ToString(), "; its successor takes ",
                    lane.beside->ToString());
      context_.ways.Fails(ToIpAddress(context_.own_address), target_, *lane.way, now);
      lane.way = lane.beside;
    }
    context_.ways.Answers(ToIpAddress(context_.own_address), target_, *lane.way);
    DialLater(lane, now);
    if (context_.path_news != nullptr) context_.path_news->Tell();
  }

  topology::PathEnds Ends() const { return {ToIpAddress(context_.own_address), target_}; }

  // A way that is to be dialed beside the socket that serves, which is given up when the new one
  // stands: the lane's way of now; or the planned one, for whose sake it has left a switch that
  // sockets found silent, and of whose return only a dial can tell. None: the lane stays.
  std::optional<topology::PathWay> WayToTry(const Lane& lane) const {
    if (!lane.planned.has_value()) return std::nullopt;
    topology::PathWay now = context_.ways->Now(*lane.planned);
    if (!(now.choices == lane.way->choices)) return now;
    if (now.choices == lane.planned->choices) return std::nullopt;
    if (!context_.ways->HasFailed(Ends(), *lane.planned)) return std::nullopt;
    // What is dialed there would go elsewhere.
    if (context_.ways->IsRerouted(*lane.planned)) return std::nullopt;
    return lane.planned;
  }

  void DialLater(Lane& lane, absl::Time now) {
    lane.try_at = absl::InfiniteFuture();
    const std::optional<topology::PathWay> way = WayToTry(lane);
    if (way.has_value() && !context_.ways->HasFailed(Ends(), *way)) {
      lane.try_at = now + kFollowPause;
    } else if (way.has_value()) {
      lane.try_at = now + lane.pause;
      lane.pause = std::min(2 * lane.pause, kReturnLongest);
    }
    SetDeadlineOfLanes();
  }

  void SetDeadlineOfLanes() {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& lane : lanes_) next = std::min(next, lane->try_at);
    SetDeadline(next);
  }

  void OnDeadline(absl::Time now) override {
    for (auto& lane : lanes_) {
      if (now < lane->try_at) continue;
      lane->try_at = absl::InfiniteFuture();
      if (lane->connector != nullptr) continue;
      lane->beside = WayToTry(*lane);
      if (lane->beside.has_value()) DialBeside(*lane, Purpose::kReturn, kReturnAttempt, now);
    }
    SetDeadlineOfLanes();
  }

  TcpContext& context_;
  const ConnectorIdentity identity_;
  const Rank peer_;
  const std::string address_;
  topology::IpAddress target_;
  const LinkParameters parameters_;
  ResumptionOwner* owner_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // [socket]
};

// ---- The accepting end

// Looks for the other process until it is stopped; one for all lost sockets of a link.
class Await final : public Resumption, private PollHandler {
 public:
  Await(TcpContext& context, Rank peer, const LinkParameters& parameters, const SocketAddress& life,
        ResumptionOwner& owner)
      : PollHandler(*context.poller),
        context_(context),
        link_id_(parameters.link_id),
        life_(life),
        owner_(&owner),
        give_up_(parameters.count) {
    auto wake = context.on_arrival ? context.on_arrival : [this] { WantTurn(); };
    entered_ = context.book->Enter(link_id_, peer, parameters.count, std::move(wake));
  }
  ~Await() override { Await::Close(); }
  bool entered() const { return entered_; }

  void Begin(size_t index, absl::Time give_up, absl::Time now) override {
    give_up_[index] = give_up;
    patience_ = Patience(context_, now);
    pause_ = kProbeFirst;
    if (!socket_) Look(now);
  }
  void End(size_t index) override {
    give_up_[index].reset();
    if (Waits()) return;
    StopLooking();
    SetDeadline(absl::InfiniteFuture());
  }

  void SetOwner(ResumptionOwner& owner) override { owner_ = &owner; }
  void Close() override {
    if (std::exchange(entered_, false)) context_.book->Leave(link_id_);
    std::fill(give_up_.begin(), give_up_.end(), std::nullopt);
    StopLooking();
    SetDeadline(absl::InfiniteFuture());
  }

  void TakeArrivals(absl::Time now) override {
    for (ResumeBook::Arrival& one : context_.book->Take(link_id_)) {
      owner_->OnNewSocket(one.index, one.epoch, std::move(one.socket), {}, now);
    }
  }

 private:
  bool Waits() const {
    return std::any_of(give_up_.begin(), give_up_.end(),
                       [](const auto& t) { return t.has_value(); });
  }

  bool OnTurn(absl::Time now) override {
    TakeArrivals(now);
    return true;
  }

  void Look(absl::Time now) {
    absl::Time next = now + pause_;
    for (const auto& one : give_up_) {
      if (one.has_value() && *one > now) next = std::min(next, *one);
    }
    SetDeadline(next);
    pause_ = std::min(2 * pause_, kProbeLongest);
    if (life_.port() == 0) return;
    ++looks_;
    absl::StatusOr<FileDescriptor> socket = StartConnect(life_, SocketAddress(), context_.tuning);
    if (!socket.ok()) return;
    socket_ = *std::move(socket);
    if (!poller().Add(socket_.get(), EPOLLOUT, this).ok()) socket_ = FileDescriptor();
  }
  void StopLooking() {
    if (socket_) poller().Remove(socket_.get());
    socket_ = FileDescriptor();
  }

  void OnEvents(uint32_t /*events*/, absl::Time now) override {
    if (!socket_) return;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    StopLooking();
    lives_ = error == 0;
    said_ = lives_ ? "it listens" : std::strerror(error);
    if (error != ECONNREFUSED) return;
    for (size_t i = 0; i < give_up_.size(); ++i) {
      if (std::exchange(give_up_[i], std::nullopt).has_value()) {
        owner_->OnNotReplaced(i, absl::UnavailableError("its process listens no more"), now);
      }
    }
    SetDeadline(absl::InfiniteFuture());
  }

  void OnDeadline(absl::Time now) override {
    if (socket_) lives_ = false, said_ = "no answer";
    StopLooking();
    for (size_t i = 0; i < give_up_.size(); ++i) {
      if (!give_up_[i].has_value() || now < (lives_ ? patience_ : *give_up_[i])) continue;
      give_up_[i].reset();
      return owner_->OnNotReplaced(
          i,
          absl::DeadlineExceededError(
              looks_ == 0 ? "it has not connected anew"
                          : absl::StrCat("it has not connected anew; was looked for ", looks_,
                                         " times at ", life_.ToString(), ": ", said_)),
          now);
    }
    if (Waits()) Look(now);
  }

  TcpContext& context_;
  const uint64_t link_id_;
  const SocketAddress life_;
  ResumptionOwner* owner_;
  bool entered_ = false;
  std::vector<std::optional<absl::Time>> give_up_;  // by index; none: not lost
  absl::Time patience_;
  absl::Duration pause_;
  FileDescriptor socket_;  // a look that has begun
  bool lives_ = false;     // by the last look
  std::string said_ = "no answer";
  int looks_ = 0;
};

}  // namespace

std::unique_ptr<Resumption> MakeRedial(TcpContext& context, const ConnectorIdentity& identity,
                                       Rank peer, std::string address,
                                       const LinkParameters& parameters,
                                       const std::vector<topology::PathWay>& planned,
                                       const std::vector<topology::PathWay>& ways,
                                       ResumptionOwner& owner, absl::Time now) {
  return std::make_unique<Redial>(context, identity, peer, std::move(address), parameters, planned,
                                  ways, owner, now);
}

std::unique_ptr<Resumption> MakeAwait(TcpContext& context, Rank peer,
                                      const LinkParameters& parameters, const SocketAddress& life,
                                      ResumptionOwner& owner) {
  if (context.book == nullptr) return nullptr;
  auto out = std::make_unique<Await>(context, peer, parameters, life, owner);
  if (!out->entered()) return nullptr;
  return out;
}

}  // namespace weft::net
