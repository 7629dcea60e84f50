#include "tools/init/worker.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/store/relay/store_relay.h"
#include "tools/init/peer_links.h"
#include "tools/init/process.h"
#include "tools/init/replacement.h"
#include "tools/init/simulated_rank.h"
#include "tools/init/weft_client.h"

namespace weft::init {
namespace {

using collectives::StoreLinkOptions;
using collectives::StoreRelayNode;

constexpr absl::Duration kTurn = absl::Milliseconds(5);
constexpr absl::Duration kRetryEvery = absl::Milliseconds(50);
// Heap that a rank takes (client, its share of a relay, links), and a worker besides.
constexpr size_t kBytesOfRank = size_t{16} << 10;
constexpr size_t kBytesOfWorker = size_t{16} << 20;

class Worker {
 public:
  explicit Worker(const WorkerPlan& plan) : plan_(plan), options_(*plan.options) {}

  absl::Status Prepare() {
    PrepareMemory();
    WEFT_ASSIGN_OR_RETURN(poller_, Poller::Create());
    exchange_ = ExchangeOf(options_);
    context_ = {&options_, plan_.shared, plan_.secret, &exchange_, poller_.get(), {}};
    for (int i = 0; i < options_.sources; ++i) {
      WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort(absl::StrCat("127.0.0.", 2 + i, ":0")));
      sources_.push_back(addresses[0]);
    }
    for (int host = plan_.host_first; host < plan_.host_end; ++host) {
      for (int i = 0; i < options_.ranks_per_host(); ++i) {
        links_.push_back(
            std::make_unique<PeerLinks>(context_, host * options_.ranks_per_host() + i));
        WEFT_RETURN_IF_ERROR(links_.back()->Listen());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Run(const std::string& address) {
    address_ = address;
    WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort(address));
    context_.server = addresses[0];
    int total = (plan_.host_end - plan_.host_first) * options_.ranks_per_host();
    int host = plan_.host_first;
    poller_->SetNow(SystemClock().Now());
    while (finished_ < total && status_.ok()) {
      while (host < plan_.host_end && under_way_ < options_.window) {
        WEFT_RETURN_IF_ERROR(StartHost(host++));
      }
      Turn();
    }
    for (const auto& rank : ranks_) {
      if (status_.ok()) status_ = rank->status();
    }
    return status_;
  }

  // Lets the survivors of groups that will lose ranks wait for that.
  void Watch() {
    for (const auto& rank : ranks_) {
      std::vector<collectives::StoreRequest> watches = WatchesOf(options_, rank->rank());
      if (watches.empty()) continue;
      plan_.shared->watches += static_cast<int64_t>(watches.size());
      AskOf(*rank, std::move(watches));
    }
    // Relays that nobody drives pass nothing on.
    SettleFor(absl::Milliseconds(200));
  }

  absl::Status Replace() {
    poller_->SetNow(SystemClock().Now());
    int first_host = options_.hosts - options_.replace / options_.ranks_per_host();
    for (int host = std::max(first_host, plan_.host_first); host < plan_.host_end; ++host) {
      WEFT_RETURN_IF_ERROR(ReplaceHost(host));
    }
    while (asked_ > 0 && status_.ok()) {
      Turn();
      for (const auto& rank : fresh_) {
        if (status_.ok()) status_ = rank->status();
      }
    }
    int64_t end = SystemClock::Nanoseconds();
    int64_t known = plan_.shared->replace_end;
    while (end > known && !plan_.shared->replace_end.compare_exchange_weak(known, end)) {
    }
    return status_;
  }

  void SettleFor(absl::Duration time) {
    poller_->SetNow(SystemClock().Now());
    absl::Time end = poller_->now() + time;
    while (poller_->now() < end) Turn();
  }

  void Messages() {
    Shared& shared = *plan_.shared;
    for (const auto& rank : ranks_) {
      shared.messages_sent += rank->client().sent();
      shared.messages_received += rank->client().received();
    }
    for (const auto& relay : relays_) {
      shared.relay_messages += relay->up().messages_sent() + relay->up().messages_received();
    }
    for (const auto& relay : above_) {
      shared.above_messages += relay->up().messages_sent() + relay->up().messages_received();
    }
  }

 private:
  // A rank's process has its heap before it comes to the store; ours is that of thousands, which
  // would else grow page by page in the midst of it.
  void PrepareMemory() const {
    auto ranks = static_cast<size_t>(plan_.host_end - plan_.host_first) *
                 static_cast<size_t>(options_.ranks_per_host());
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 2147483647);
    std::vector<char> heap(ranks * kBytesOfRank + kBytesOfWorker);
    for (size_t i = 0; i < heap.size(); i += 4096) const_cast<volatile char&>(heap[i]) = 1;
  }

  // Replacing is our own store's.
  void AskOf(SimulatedRank& rank, std::vector<collectives::StoreRequest> requests) {
    asked_ += static_cast<int>(requests.size());
    auto& client = static_cast<WeftClient&>(rank.client());
    for (auto& request : requests) {
      client.Call(std::move(request), [this](const absl::Status& status, int64_t) {
        if (status_.ok()) status_ = status;
        --asked_;
      });
    }
  }

  absl::Status ReplaceHost(int host) {
    WEFT_ASSIGN_OR_RETURN(StoreLinkOptions link, LinkOf(host, /*generation=*/1));
    for (int i = 0; i < options_.ranks_per_host(); ++i) {
      ++asked_;
      fresh_.push_back(std::make_unique<NewRank>(context_, host * options_.ranks_per_host() + i,
                                                 link, [this] { --asked_; }));
      fresh_.back()->Start();
    }
    return absl::OkStatus();
  }

  // How the ranks of a host get to the store; starts the host's relay.
  absl::StatusOr<StoreLinkOptions> LinkOf(int host, int generation) {
    StoreLinkOptions link;
    link.connect_timeout = options_.timeout;
    link.address = address_;
    if (options_.relay) {
      collectives::StoreRelayOptions relay;
      WEFT_ASSIGN_OR_RETURN(relay.up, UpOf(host));
      relay.secret = plan_.secret;
      relay.name = absl::StrCat("pid ", getpid());
      relay.job = "weft-init";
      relay.host = absl::StrCat("host", host);
      relay.first_rank = host * options_.ranks_per_host();
      relay.ranks = options_.ranks_per_host();
      relay.world = options_.ranks;
      relay.source = sources_[static_cast<size_t>(host) % sources_.size()];
      relay.connect_timeout = options_.timeout;
      relay.generation = generation;
      WEFT_ASSIGN_OR_RETURN(auto node, StoreRelayNode::Start(*poller_, relay));
      link.address = node->address();
      relays_.push_back(std::move(node));
    }
    return link;
  }

  // Where a host's relay goes: to the root, or to the relay above, which the first of its hosts
  // starts. Each process has relays above of its own, for its hosts.
  absl::StatusOr<std::string> UpOf(int host) {
    if (options_.fan_out == 0) return address_;
    auto group = static_cast<size_t>((host - plan_.host_first) / options_.fan_out);
    if (group < above_.size()) return above_[group]->address();
    int first = plan_.host_first + static_cast<int>(group) * options_.fan_out;
    int hosts = std::min(options_.fan_out, plan_.host_end - first);
    collectives::StoreRelayOptions above;
    above.listen = "127.0.0.1:0";
    above.up = address_;
    above.secret = plan_.secret;
    above.name = absl::StrCat("pid ", getpid());
    above.job = "weft-init";
    above.host = absl::StrCat("host", first);
    above.first_rank = first * options_.ranks_per_host();
    above.ranks = hosts * options_.ranks_per_host();
    above.world = options_.ranks;
    above.source = sources_[group % sources_.size()];
    above.connect_timeout = options_.timeout;
    WEFT_ASSIGN_OR_RETURN(auto node, StoreRelayNode::Start(*poller_, above));
    above_.push_back(std::move(node));
    return above_.back()->address();
  }

  absl::Status StartHost(int host) {
    WEFT_ASSIGN_OR_RETURN(StoreLinkOptions link, LinkOf(host, /*generation=*/0));
    for (int i = 0; i < options_.ranks_per_host(); ++i) {
      int rank = host * options_.ranks_per_host() + i;
      if (!options_.relay && context_.server.is_loopback())
        link.source = sources_[static_cast<size_t>(rank) % sources_.size()];
      ++under_way_;
      PeerLinks& links = *links_[ranks_.size()];
      ranks_.push_back(std::make_unique<SimulatedRank>(
          context_, rank, link, links, [this] { --under_way_; }, [this] { ++finished_; }));
      ranks_.back()->Start();
    }
    return absl::OkStatus();
  }

  void Turn() {
    poller_->Sleep(poller_->now() + (options_.relay ? kTurn : kRetryEvery));
    absl::Time now = poller_->now();
    for (const auto& relay : relays_) relay->Settle(now);
    for (const auto& relay : above_) relay->Settle(now);
    plan_.shared->finished += finished_ - counted_;
    counted_ = finished_;
    if (now < next_check_) return;
    next_check_ = now + kRetryEvery;
    for (const auto& links : links_) links->Advance(now);
    for (const auto& rank : ranks_) {
      rank->client().Advance(now);
      if (status_.ok()) status_ = rank->status();
    }
  }

  const WorkerPlan& plan_;
  const Options& options_;
  std::unique_ptr<Poller> poller_;
  Expected exchange_;
  ProcessContext context_;
  std::vector<SocketAddress> sources_;
  std::string address_;
  std::vector<std::unique_ptr<StoreRelayNode>> above_;
  std::vector<std::unique_ptr<StoreRelayNode>> relays_;
  std::vector<std::unique_ptr<PeerLinks>> links_;
  std::vector<std::unique_ptr<SimulatedRank>> ranks_;
  std::vector<std::unique_ptr<NewRank>> fresh_;
  int asked_ = 0;  // answers that are due
  int under_way_ = 0;
  int finished_ = 0;
  int counted_ = 0;
  absl::Time next_check_ = absl::InfinitePast();
  absl::Status status_;
};

}  // namespace

void RunWorker(const WorkerPlan& plan, int commands, int results) {
  Worker worker(plan);
  absl::Status status = worker.Prepare();
  Say(results, status.ok() ? "ready" : std::string(status.message()));
  std::array<char, 128> address{};
  ssize_t got = read(commands, address.data(), address.size() - 1);
  if (got <= 0 || !status.ok()) return;
  status = worker.Run(std::string(address.data(), static_cast<size_t>(got)));
  worker.Messages();
  SayOutcome(results, status);
  // Until its word comes, the others' exchange may still go through this process' relays, but what
  // they need has been sent.
  while (read(commands, address.data(), 1) == 1 && status.ok()) {
    if (address[0] == 'w') worker.Watch();
    if (address[0] == 'r') status = worker.Replace();
    SayOutcome(results, status);
  }
}

}  // namespace weft::init
