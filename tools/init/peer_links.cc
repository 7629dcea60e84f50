#include "tools/init/peer_links.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/handshake.h"

namespace weft::init {
namespace {

using net::HandshakeState;

constexpr uint32_t kFirstAddress = 0x7f400000;  // 127.64.0.0

net::HandshakeIdentity IdentityOf(const ProcessContext& context, int rank) {
  net::HandshakeIdentity identity;
  identity.self = Rank(rank);
  identity.world_size = context.options->ranks;
  identity.secret = context.secret;
  identity.purpose = net::HandshakePurpose::kTcpLink;
  return identity;
}

int SampledHosts(const Options& options) {
  int wanted = options.connect_ranks < 0 ? kLinkRanks : options.connect_ranks;
  int per_host = options.ranks_per_host();
  return std::min(options.hosts, (wanted + per_host - 1) / per_host);
}

FileDescriptor MakeSocket() {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int one = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  // A port that one of an earlier run left, dialled from the same address, may be listened at.
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  return socket;
}

}  // namespace

SocketAddress AddressOf(const Options& options, int rank) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(options.link_port));
  address.sin_addr.s_addr = htonl(kFirstAddress + static_cast<uint32_t>(rank));
  return SocketAddress(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

// The k-th of n hosts in a row is one of m evenly spread ones where k m / n steps up.
bool Sampled(const Options& options, int rank) {
  int64_t host = rank / options.ranks_per_host();
  int64_t sampled = SampledHosts(options);
  return (host + 1) * sampled / options.hosts > host * sampled / options.hosts;
}

int SampledRanks(const Options& options) {
  return SampledHosts(options) * options.ranks_per_host();
}

int64_t LinkDescriptors(const Options& options) {
  int64_t links = int64_t{SampledRanks(options)} * 2 * options.mesh.axes().size();
  return 3 * links;  // both ends, and the listeners at the other one
}

// ---- A listener, and a link of either direction

class PeerLinks::Listener final : public PollHandler {
 public:
  explicit Listener(PeerLinks* owner)
      : PollHandler(*owner->context_.poller), owner_(owner), socket_(MakeSocket()) {}
  ~Listener() override { poller().Remove(socket_.get()); }

  absl::Status Begin(const SocketAddress& address) {
    if (bind(socket_.get(), address.get(), address.size()) != 0 || listen(socket_.get(), 64) != 0) {
      return ErrnoStatus(errno, absl::StrCat("listen at ", address.ToString()));
    }
    return poller().Add(socket_.get(), EPOLLIN, this);
  }
  void OnEvents(uint32_t, absl::Time) override { owner_->Accept(); }
  int fd() const { return socket_.get(); }

 private:
  PeerLinks* const owner_;
  FileDescriptor socket_;
};

class PeerLinks::Link final : public PollHandler {
 public:
  // Dialled, to `peer`.
  Link(PeerLinks* owner, FileDescriptor socket, int peer)
      : PollHandler(*owner->context_.poller),
        owner_(owner),
        socket_(std::move(socket)),
        peer_(peer) {
    connector_ = std::make_unique<net::ConnectorHandshake>(
        IdentityOf(owner->context_, owner->rank_), Rank(peer), "", net::NewNonce());
    connecting_ = true;
    Watch(EPOLLOUT);
  }
  // Accepted.
  Link(PeerLinks* owner, FileDescriptor socket)
      : PollHandler(*owner->context_.poller), owner_(owner), socket_(std::move(socket)) {
    listener_ = std::make_unique<net::ListenerHandshake>(IdentityOf(owner->context_, owner->rank_),
                                                         net::NewNonce());
    Watch(EPOLLIN);
    Write(listener_->TakeOutput());
  }
  ~Link() override { Unwatch(); }

  void OnEvents(uint32_t, absl::Time) override {
    if (!watched_) return;
    if (connecting_) {
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return Fail(ErrnoStatus(error, "connect"));
      connecting_ = false;
      poller().Change(socket_.get(), EPOLLIN, this);
      return;
    }
    std::array<char, net::kHandshakeBytesMax> buffer;
    ssize_t got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return Fail(absl::UnavailableError("closed during the handshake"));
    absl::string_view bytes(buffer.data(), static_cast<size_t>(got));
    if (connector_) {
      connector_->Feed(bytes);
      Write(connector_->TakeOutput());
      Look(connector_->state(), connector_->status());
    } else {
      FeedListener(bytes);
    }
  }

 private:
  void Watch(uint32_t events) {
    if (absl::Status added = poller().Add(socket_.get(), events, this); !added.ok()) Fail(added);
  }

  void FeedListener(absl::string_view bytes) {
    listener_->Feed(bytes);
    if (listener_->state() == HandshakeState::kHello) {
      peer_ = listener_->hello().rank.value();
      if (owner_->Find(peer_, /*dials=*/false) != nullptr) {
        listener_->Accept("");
      } else {
        listener_->Refuse("no connection with this rank is planned");
      }
    }
    Write(listener_->TakeOutput());
    Look(listener_->state(), listener_->status());
  }

  void Look(HandshakeState state, const absl::Status& status) {
    if (state == HandshakeState::kFailed) return Fail(status);
    if (state != HandshakeState::kDone) return;
    Unwatch();  // the connection stands, and stays
    connector_.reset();
    listener_.reset();
    owner_->Stands(peer_);
  }

  // A message fits into the buffer of a socket that is still empty.
  void Write(const std::string& bytes) {
    if (bytes.empty()) return;
    ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(bytes.size())) Fail(ErrnoStatus(errno, "send"));
  }

  void Fail(const absl::Status& why) {
    Unwatch();
    owner_->Fail(Annotate(
        why, peer_ < 0 ? "a peer's connection" : absl::StrCat("connection with rank ", peer_)));
  }

  void Unwatch() {
    if (watched_) poller().Remove(socket_.get());
    watched_ = false;
  }

  PeerLinks* const owner_;
  FileDescriptor socket_;
  int peer_ = -1;
  bool connecting_ = false;
  bool watched_ = true;
  std::unique_ptr<net::ConnectorHandshake> connector_;
  std::unique_ptr<net::ListenerHandshake> listener_;
};

// ---- The rank

PeerLinks::PeerLinks(const ProcessContext& context, int rank) : context_(context), rank_(rank) {
  const Options& options = *context.options;
  bool own = Sampled(options, rank);
  for (const auto& planned :
       collectives::PlanConnections(options.mesh.GroupsOf(topology::JobRank(rank)))) {
    if (own || Sampled(options, planned.peer)) edges_.push_back({planned, false});
  }
}

PeerLinks::~PeerLinks() = default;

absl::Status PeerLinks::Listen() {
  bool dialled =
      std::any_of(edges_.begin(), edges_.end(), [](const Edge& edge) { return !edge.plan.dials; });
  if (!dialled) return absl::OkStatus();
  listener_ = std::make_unique<Listener>(this);
  return listener_->Begin(AddressOf(*context_.options, rank_));
}

void PeerLinks::Begin(std::function<void(const absl::Status&)> done) {
  done_ = std::move(done);
  begun_ = true;
  give_up_ = context_.poller->now() + context_.options->timeout;
  if (!failed_.ok()) return Fail(failed_);
  Proceed();
}

// Dials what the first unfinished round has; reports when there is none.
void PeerLinks::Proceed() {
  if (!begun_ || !done_) return;
  auto open = std::find_if(edges_.begin(), edges_.end(), [](const Edge& e) { return !e.stands; });
  if (open == edges_.end()) {
    give_up_ = absl::InfiniteFuture();
    if (auto done = std::exchange(done_, nullptr)) done(absl::OkStatus());
    return;
  }
  int round = open->plan.round;
  if (round <= dialled_round_) return;
  dialled_round_ = round;
  for (const Edge& edge : edges_) {
    if (edge.plan.round == round && edge.plan.dials) Dial(edge.plan.peer);
  }
}

void PeerLinks::Dial(int peer) {
  FileDescriptor socket = MakeSocket();
  int one = 1;
  setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
  SocketAddress own = AddressOf(*context_.options, rank_);
  own.set_port(0);  // any
  SocketAddress target = AddressOf(*context_.options, peer);
  if (bind(socket.get(), own.get(), own.size()) != 0 ||
      (connect(socket.get(), target.get(), target.size()) != 0 && errno != EINPROGRESS)) {
    return Fail(
        ErrnoStatus(errno, absl::StrCat("connect to rank ", peer, " at ", target.ToString())));
  }
  links_.push_back(std::make_unique<Link>(this, std::move(socket), peer));
}

void PeerLinks::Accept() {
  while (true) {
    FileDescriptor socket(accept4(listener_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    links_.push_back(std::make_unique<Link>(this, std::move(socket)));
  }
}

PeerLinks::Edge* PeerLinks::Find(int peer, bool dials) {
  for (Edge& edge : edges_) {
    if (edge.plan.peer == peer && edge.plan.dials == dials) return &edge;
  }
  return nullptr;
}

void PeerLinks::Stands(int peer) {
  for (Edge& edge : edges_) {
    if (edge.plan.peer != peer) continue;
    edge.stands = true;
    if (edge.plan.dials) ++context_.shared->connections;
  }
  Proceed();
}

void PeerLinks::Fail(const absl::Status& status) {
  if (failed_.ok()) failed_ = status;
  if (auto done = std::exchange(done_, nullptr)) done(failed_);
}

void PeerLinks::Advance(absl::Time now) {
  if (now < give_up_) return;
  give_up_ = absl::InfiniteFuture();
  for (const Edge& edge : edges_) {
    if (edge.stands) continue;
    return Fail(absl::DeadlineExceededError(
        absl::StrCat("no connection with rank ", edge.plan.peer, " on host",
                     edge.plan.peer / context_.options->ranks_per_host(), " after ",
                     absl::FormatDuration(context_.options->timeout))));
  }
}

}  // namespace weft::init
