#include "collectives/store/relay/store_relay.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"

namespace weft::collectives {
namespace {

constexpr int64_t kConnectionsMax = 4096;

StoreHello HelloOf(const StoreRelayOptions& options) {
  StoreHello hello;
  hello.id = NewStoreId();
  hello.name = absl::StrCat("relay ", options.name);
  hello.job = options.job;
  hello.host = options.host;
  hello.rank = options.first_rank;
  hello.ranks = options.ranks;
  hello.generation = options.generation;
  return hello;
}

std::string NameOf(const StoreRelayOptions& options) {
  return absl::StrCat("relay ", options.name, options.host.empty() ? "" : " on ", options.host);
}

StoreRelayTableOptions TableOptions(const StoreRelayOptions& options) {
  StoreRelayTableOptions table;
  table.name = NameOf(options);
  table.world = options.world;
  table.expected = options.ranks;
  table.files = options.listen.empty() || absl::StartsWith(options.listen, kUnixPrefix);
  return table;
}

StoreCoreOptions CoreOptions(const StoreRelayOptions& options) {
  StoreCoreOptions core;
  core.secret = options.secret;
  core.description = NameOf(options);
  return core;
}

StoreLinkOptions LinkOptions(const StoreRelayOptions& options) {
  StoreLinkOptions link;
  link.address = options.up;
  link.find = options.find_up;
  link.source = options.source;
  link.connect_timeout = options.connect_timeout;
  link.reconnect = options.reconnect;
  return link;
}

// What others should dial to come to `listener`, for them who know the root as `root`; `own` is our
// end of the way there. Where that does not leave this host, they know us by the root's name.
absl::StatusOr<std::string> AddressTowards(const std::string& root,
                                           const absl::StatusOr<SocketAddress>& own,
                                           const std::string& listener) {
  WEFT_RETURN_IF_ERROR(own.status());
  WEFT_ASSIGN_OR_RETURN(auto here, SplitHostPort(listener));
  WEFT_ASSIGN_OR_RETURN(auto way, SplitHostPort(own->is_loopback() ? root : own->ToString()));
  return JoinHostPort(way.first, here.second);
}

class Relay final : public StoreRelay {
 public:
  absl::Status Begin(const StoreRelayOptions& options) {
    WEFT_ASSIGN_OR_RETURN(poller_, Poller::Create());
    WEFT_ASSIGN_OR_RETURN(waker_, PollWaker::Create(*poller_));
    WEFT_ASSIGN_OR_RETURN(node_, StoreRelayNode::Start(*poller_, options));
    thread_ = std::thread([this] {
      while (!stop_) {
        node_->Settle(poller_->now());
        poller_->Sleep(node_->deadline());
      }
    });
    return absl::OkStatus();
  }

  ~Relay() override {
    // In a forked process there is no such thread.
    if (getpid() != owner_) {
      if (thread_.joinable()) thread_.detach();
      return;
    }
    stop_ = true;
    if (waker_ != nullptr) waker_->Wake();  // null: it has not begun
    if (thread_.joinable()) thread_.join();
  }

  const std::string& address() const override { return node_->address(); }

 private:
  const pid_t owner_ = getpid();
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<PollWaker> waker_;
  std::unique_ptr<StoreRelayNode> node_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace

StoreRelayNode::StoreRelayNode(Poller& poller, const StoreRelayOptions& options)
    : root_(options.up),
      publish_(options.publish),
      up_(options.secret, HelloOf(options)),
      table_(&up_, TableOptions(options)),
      core_(CoreOptions(options), &table_),
      link_(poller, up_, LinkOptions(options), [this] { touched_ = true; }) {
  // Without this the root would not know the names of hosts below an upper relay.
  core_.set_on_hello(
      [this, generation = options.generation, host = options.host](const StoreHello& hello) {
        bool elsewhere = !host.empty() && !hello.host.empty() && hello.host != host;
        if (hello.generation > generation || elsewhere) table_.Announce(hello);
      });
}

absl::StatusOr<std::unique_ptr<StoreRelayNode>> StoreRelayNode::Start(
    Poller& poller, const StoreRelayOptions& options) {
  std::string listen = options.listen;
  if (listen.empty()) {
    listen = absl::StrCat(kUnixPrefix, "weft-relay-", absl::BytesToHexString(NewStoreId()));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<SocketAddress> own, ResolveHostPort(listen));
  bool is_open = !own[0].is_unix() && !own[0].is_loopback() && options.secret == net::JobSecret{};
  if (is_open) {
    return absl::InvalidArgumentError(
        absl::StrCat("a relay at ", listen,
                     " without a secret would serve unauthenticated clients; give it a secret"));
  }
  if (!options.find_up) WEFT_RETURN_IF_ERROR(CheckStoreAddress(options.up));
  WEFT_ASSIGN_OR_RETURN(FileDescriptor listener, ListenForStore(own[0]));
  std::unique_ptr<StoreRelayNode> node(new StoreRelayNode(poller, options));
  node->service_ = std::make_unique<StoreService>(poller, node->core_, std::move(listener), own[0],
                                                  kConnectionsMax);
  node->link_.Dial();
  return node;
}

void StoreRelayNode::Settle(absl::Time now) {
  if (!touched_ && !service_->touched() && now < due_) return;
  link_.Advance(now);
  touched_ = false;
  if (!publish_.empty()) Publish();
  service_->Settle(now, [] {});
  link_.Flush();
  due_ = std::min({link_.deadline(), core_.deadline(), service_->deadline()});
}

// Once there is a way to the root, which says what this host's address is there.
void StoreRelayNode::Publish() {
  if (up_.state() == StoreClientCore::State::kGone) {
    table_.PublishFailed(std::exchange(publish_, {}), up_.gone());
  } else if (up_.state() == StoreClientCore::State::kReady) {
    std::string key = std::exchange(publish_, {});
    auto address = AddressTowards(root_, link_.LocalAddress(), service_->address());
    if (!address.ok()) return table_.PublishFailed(key, address.status());
    table_.Publish(key, *address);
  }
}

absl::Time StoreRelayNode::deadline() const {
  if (touched_ || service_->touched()) return absl::InfinitePast();
  return std::min({link_.deadline(), core_.deadline(), service_->deadline()});
}

absl::StatusOr<std::unique_ptr<StoreRelay>> StoreRelay::Start(const StoreRelayOptions& options) {
  auto relay = std::make_unique<Relay>();
  WEFT_RETURN_IF_ERROR(relay->Begin(options));
  return relay;
}

}  // namespace weft::collectives
