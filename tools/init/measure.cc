#include "tools/init/measure.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "net/secret.h"
#include "tools/init/measured_store.h"
#include "tools/init/peer_links.h"
#include "tools/init/process.h"
#include "tools/init/simulated_rank.h"
#include "tools/init/worker.h"

namespace weft::init {
namespace {

constexpr int kSpareDescriptors = 256;

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

void Summarise(const Options& options, Shared& shared, Measurement& m) {
  int64_t begin = std::numeric_limits<int64_t>::max();
  for (int rank = 0; rank < options.ranks; ++rank) {
    begin = std::min(begin, shared.times()[rank].begin);
  }
  int64_t before = begin;
  for (size_t p = 0; p < kPhases; ++p) {
    Measurement::PhaseTimes& phase = m.phases[p];
    std::vector<int64_t> own;
    int64_t last = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      const RankTimes& times = shared.times()[rank];
      int64_t from = p == 0 ? times.begin : times.end[p - 1];
      own.push_back(times.end[p] - from);
      if (Seconds(own.back()) > phase.max) {
        phase.max = Seconds(own.back());
        phase.slowest = rank;
      }
      last = std::max(last, times.end[p]);
    }
    std::sort(own.begin(), own.end());
    phase.p50 = Seconds(own[own.size() / 2]);
    phase.p99 = Seconds(own[(own.size() - 1) * 99 / 100]);
    phase.seconds = Seconds(std::max<int64_t>(0, last - before));
    before = std::max(before, last);
  }
  m.total_seconds = Seconds(before - begin);
}

// Descriptors that a host needs in its worker: both ends of each rank's connection, and its relay's
// listener, uplink, spare one and reply; of a relay above, the uplink's other end, and its share of
// what that one has itself.
int DescriptorsOfHost(const Options& options) {
  int store = options.relay ? 2 * options.ranks_per_host() + 5 : options.ranks_per_host();
  if (options.fan_out > 0) store += 1 + (4 + options.fan_out) / options.fan_out;
  return store + static_cast<int>(LinkDescriptors(options) / options.hosts) + 1;
}

absl::StatusOr<int> WorkersFor(const Options& options, int64_t limit) {
  int64_t server = (options.relay ? options.hosts : options.ranks) + kSpareDescriptors;
  if (server > limit) {
    return absl::ResourceExhaustedError(absl::StrCat("the server needs ", server,
                                                     " file descriptors and this process may have ",
                                                     limit, ": raise the hard limit (ulimit -Hn)"));
  }
  int64_t hosts = (limit - kSpareDescriptors) / DescriptorsOfHost(options);
  if (hosts < 1) {
    return absl::ResourceExhaustedError(absl::StrCat("a host needs ", DescriptorsOfHost(options),
                                                     " file descriptors, more than the limit of ",
                                                     limit, ": raise the hard limit (ulimit -Hn)"));
  }
  auto least = static_cast<int>((options.hosts + hosts - 1) / hosts);
  return std::min(options.hosts, std::max({2, least, options.workers}));
}

// Not before every survivor's watch is at the store.
absl::Status Replace(const Options& options, Shared& shared, const Processes& workers,
                     const StoreProcess& store, Measurement& m) {
  SystemClock clock;
  auto tick = [] {};
  for (const auto& worker : workers) worker->Tell("w");
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ok", options.timeout, tick));
  m.watches = shared.watches;
  absl::Time deadline = clock.Now() + options.timeout;
  while (store.waiting() != m.watches) {
    if (clock.Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("of ", m.watches, " watches ", store.waiting(), " have come to the store"));
    }
    poll(nullptr, 0, 5);
  }
  int64_t begin = SystemClock::Nanoseconds();
  for (const auto& worker : workers) worker->Tell("r");
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ok", options.timeout, tick));
  m.replace_seconds = Seconds(shared.replace_end - begin);
  return absl::OkStatus();
}

absl::StatusOr<int> TakePort(int socket) {
  WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort("127.0.0.1:0"));
  if (bind(socket, addresses[0].get(), addresses[0].size()) != 0) {
    return ErrnoStatus(errno, "take a port");
  }
  return LocalAddress(socket).port();
}

}  // namespace

absl::StatusOr<Measurement> Measure(const Options& given,
                                    const std::function<void(int64_t)>& progress) {
  Options options = given;
  // Every rank listens at an address of its own, at this port, which is taken meanwhile.
  FileDescriptor port(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  WEFT_ASSIGN_OR_RETURN(options.link_port, TakePort(port.get()));
  Measurement m;
  m.ranks = options.ranks;
  m.hosts = options.hosts;
  WEFT_ASSIGN_OR_RETURN(m.workers, WorkersFor(options, RaiseOpenFilesLimit()));
  WEFT_ASSIGN_OR_RETURN(SharedMemory shared, MapShared(options.ranks));
  WorkerPlan plan;
  plan.options = &options;
  plan.shared = shared.get();
  plan.secret = net::NewJobSecret();
  // Before the server's thread: a fork copies no other.
  Processes workers;
  for (int i = 0; i < m.workers; ++i) {
    plan.host_first = static_cast<int>(int64_t{options.hosts} * i / m.workers);
    plan.host_end = static_cast<int>(int64_t{options.hosts} * (i + 1) / m.workers);
    WEFT_ASSIGN_OR_RETURN(auto worker,
                          Process::Start([&](int socket) { RunWorker(plan, socket, socket); }));
    workers.push_back(std::move(worker));
  }
  auto tick = [&] { progress(shared->finished); };
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ready", absl::Minutes(1), tick));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StoreProcess> store,
                        options.store->Start(options.ranks, plan.secret));
  m.note = store->note();
  for (const auto& worker : workers) worker->Tell(store->address());
  WEFT_RETURN_IF_ERROR(AwaitAll(workers, "ok", 2 * options.timeout, tick));
  m.server_cpu_seconds = store->cpu_seconds();
  m.root_bytes = store->bytes_sent();
  m.root_messages = shared->messages_sent + shared->messages_received;
  m.messages = m.root_messages + shared->relay_messages + shared->above_messages;
  if (options.relay) m.root_messages = shared->relay_messages;
  if (options.relay && options.fan_out > 0) m.root_messages = shared->above_messages;
  m.connections = shared->connections;
  m.exchange_bytes = MeanExchangeBytes(options);
  Summarise(options, *shared, m);
  if (options.replace > 0) WEFT_RETURN_IF_ERROR(Replace(options, *shared, workers, *store, m));
  return m;
}

}  // namespace weft::init
