// How an endpoint opens: the job's secret, transports, addresses.
#include "collectives/endpoint.h"

#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/first_line.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"
#include "collectives/planner/own_place.h"
#include "collectives/rendezvous/fast_init.h"
#include "collectives/rendezvous/host_table.h"
#include "topology/host/affinity.h"

namespace weft::collectives {
namespace {

// What two processes must have in common to share memory (docs/decisions/0002): the kernel, the
// network namespace, in which unix sockets find each other, and the user, whose number means the
// same in one user namespace only. What is not known is like nobody else's.
absl::StatusOr<std::string> ThisHost() {
  const std::string boot = FirstLine("/proc/sys/kernel/random/boot_id");
  std::string out = absl::StrCat(boot, "-", geteuid());
  bool known = !boot.empty();
  for (const char* name : {"net", "user"}) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(absl::StrCat("/proc/self/ns/", name), error);
    known &= !error;
    absl::StrAppend(&out, "-", target.string());  // "net:[4026531840]"
  }
  if (known) return out;
  std::array<char, 16> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return ErrnoStatus(errno, "draw a name for a host that has no boot_id or no namespaces");
  }
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

// A look-up of a record takes no longer than this: all have given theirs by then.
constexpr absl::Duration kLookupPatience = absl::Seconds(30);

// Ranks of a job that is small enough for every rank to learn all addresses at the start, some 200
// bytes each, so that the first collective looks none up.
constexpr int kAllRecordsRanks = 64;

// Words of the store cannot hold spaces.
std::string Word(absl::string_view text) { return absl::StrCat("=", absl::BytesToHexString(text)); }
std::string FromWord(absl::string_view word) {
  return word.empty() ? "" : absl::HexStringToBytes(word.substr(1));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Endpoint>> Endpoint::Create(EndpointOptions options) {
  if (options.world_size < 1 || options.rank.value() < 0 ||
      options.rank.value() >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank.value(), " of a job of ", options.world_size, " ranks"));
  }
  if (options.mesh.axes().empty()) {
    WEFT_ASSIGN_OR_RETURN(options.mesh,
                          topology::Mesh::Create({{topology::Axis::kData, options.world_size}}));
  }
  if (options.mesh.ranks() != options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("layout ", options.mesh.ToText(), " has ",
                                                   options.mesh.ranks(), " ranks; the job has ",
                                                   options.world_size));
  }
  if (options.store == nullptr && options.world_size > 1) {
    return absl::InvalidArgumentError("an endpoint of several ranks needs a store");
  }
  auto endpoint = std::make_shared<EndpointImpl>(std::move(options));
  WEFT_RETURN_IF_ERROR(endpoint->Open());
  return std::shared_ptr<Endpoint>(std::move(endpoint));
}

EndpointImpl::EndpointImpl(EndpointOptions options) : options_(std::move(options)) {
  collective_timeout_ = options_.settings.Duration("collective.timeout");
}

absl::Status EndpointImpl::Open() {
  if (options_.host.empty()) {
    WEFT_ASSIGN_OR_RETURN(options_.host, ThisHost());
  }
  recorder_ = Recorder(options_.settings, options_.job, options_.rank.value(), options_.world_size);
  peers_.resize(static_cast<size_t>(options_.world_size));
  for (int r = 0; r < options_.world_size; ++r) peers_[static_cast<size_t>(r)].rank = Rank(r);
  WEFT_ASSIGN_OR_RETURN(epoll_, Epoll::Create());
  event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) return ErrnoStatus(errno, "create an eventfd");
  WEFT_RETURN_IF_ERROR(epoll_.Add(event_.get(), EPOLLIN, {.fd = event_.get()}));
  WEFT_ASSIGN_OR_RETURN(forced_, planner::Forced::Create(options_.settings));
  if (options_.rank == Rank(0)) {
    WEFT_ASSIGN_OR_RETURN(const planner::Calibration calibration,
                          planner::LoadCalibration(options_.settings));
    costs_ = planner::TableFor(calibration, options_.settings, JobCores());
  }
  places_.resize(peers_.size());
  WEFT_ASSIGN_OR_RETURN(places_[options_.rank.index()], planner::OwnPlace(options_.settings));
  int ranks_here = 1;
  if (options_.world_size > 1) {
    const int64_t start_ns = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(AgreeOnSecret());
    WEFT_RETURN_IF_ERROR(OpenTransports());
    const int64_t open_ns = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(ExchangeRecords());
    start_phases_ = {{"transports", absl::Nanoseconds(open_ns - start_ns)},
                     {"exchange", absl::Nanoseconds(SystemClock::Nanoseconds() - open_ns)}};
    for (const Peer& peer : peers_) {
      ranks_here += peer.rank != options_.rank && peer.host == host(options_.rank);
    }
  }
  yield_ns_ = absl::ToInt64Nanoseconds(options_.settings.Duration("wait.yield"));
  // Whoever spins while ranks outnumber cores keeps the one that it waits for from running.
  const bool may_spin = ranks_here <= JobCores();
  spin_ns_ = may_spin ? absl::ToInt64Nanoseconds(options_.settings.Duration("wait.spin")) : 0;
  if (options_.world_size > 1) thread_ = std::thread([this] { Background(); });
  return absl::OkStatus();
}

absl::Status EndpointImpl::AgreeOnSecret() {
  if (options_.secret != net::JobSecret{}) return absl::OkStatus();
  const std::string key = absl::StrCat(options_.job, "/secret");
  if (options_.rank == Rank(0)) {
    if (getrandom(options_.secret.data(), options_.secret.size(), 0) !=
        static_cast<ssize_t>(options_.secret.size())) {
      return ErrnoStatus(errno, "draw the job's secret");
    }
    const std::string text(options_.secret.begin(), options_.secret.end());
    return options_.store->Set(key, absl::BytesToHexString(text));
  }
  auto text = options_.store->Get(key, options_.settings.Duration("store.timeout"));
  if (!text.ok()) return Annotate(text.status(), "wait for rank 0's secret of the job");
  const std::string secret = absl::HexStringToBytes(*text);
  if (secret.size() != options_.secret.size()) {
    return absl::DataLossError(absl::StrCat("key ", key, " of the store holds no secret"));
  }
  std::copy(secret.begin(), secret.end(), options_.secret.begin());
  return absl::OkStatus();
}

absl::Status EndpointImpl::OpenTransports() {
  const std::string& wanted = options_.settings.Text("transport");
  const std::pair<net::TransportKind, const char*> kinds[kTransportsMax] = {
      {net::TransportKind::kShm, "shm"},
      wanted == "ucx"         ? std::pair(net::TransportKind::kUcx, "ucx")
      : wanted == "verbs"     ? std::pair(net::TransportKind::kVerbs, "verbs")
      : wanted == "multipath" ? std::pair(net::TransportKind::kMultipath, "multipath")
                              : std::pair(net::TransportKind::kTcp, "tcp")};
  for (int t = 0; t < kTransportsMax; ++t) {
    if (wanted != "auto" && wanted != kinds[t].second) continue;
    net::TransportOptions options;
    options.self = options_.rank;
    options.world_size = options_.world_size;
    options.secret = options_.secret;
    options.events = this;
    options.settings = options_.settings;
    options.peers_listen = true;  // before their records say where
    WEFT_ASSIGN_OR_RETURN(transports_[t], net::CreateTransport(kinds[t].first, options));
  }
  return absl::OkStatus();
}

absl::Status EndpointImpl::ExchangeRecords() {
  FastInitOptions init;
  init.mesh = options_.mesh;
  init.rank = options_.rank.value();
  init.generation = options_.generation;
  init.prefix = options_.job;
  init.host = options_.host;
  std::vector<std::string> words;
  for (const auto& transport : transports_) {
    words.push_back(transport == nullptr ? "" : Word(transport->address()));
  }
  words.push_back(ToWord(places_[options_.rank.index()]));
  init.address = absl::StrJoin(words, " ");
  init.all_records = options_.rank == Rank(0) || options_.world_size <= kAllRecordsRanks;
  init.timeout = options_.settings.Duration("store.timeout");
  auto job = CreateGroups(*options_.store, init);
  if (!job.ok()) return Annotate(job.status(), "learn the addresses of the other ranks");
  WEFT_RETURN_IF_ERROR(ShareHosts(init, *job));
  WEFT_RETURN_IF_ERROR(ChooseTransports());
  for (const auto& [rank, record] : job->members) {
    if (rank == init.rank) continue;
    WEFT_RETURN_IF_ERROR(TakeRecord(peers_[static_cast<size_t>(rank)], record));
  }
  init.timeout = std::min(init.timeout, kLookupPatience);
  lookup_ = std::make_unique<RecordLookup>(
      options_.store, init, [this](int rank, const absl::StatusOr<MemberRecord>& record) {
        Lock lock(mutex_);
        tasks_.push_back([this, rank, record] {
          Peer& peer = peers_[static_cast<size_t>(rank)];
          const absl::Status status = record.ok() ? TakeRecord(peer, *record) : record.status();
          if (!status.ok() && peer.gone.ok()) MarkGone(peer, status);
        });
        inbox_full_.store(true, std::memory_order_release);
        background_.notify_one();
        Wake();
      });
  return absl::OkStatus();
}

// The table: hosts, costs, which of the distinct places each rank has, and these.
absl::Status EndpointImpl::ShareHosts(const FastInitOptions& init, const JobGroups& job) {
  const std::string key = absl::StrCat(options_.job, "/hosts");
  std::string table;
  if (options_.rank == Rank(0)) {
    std::vector<std::string> names, places, distinct;
    for (const auto& [rank, record] : job.members) {
      names.push_back(record.host);
      places.emplace_back(record.address.substr(record.address.rfind(' ') + 1));
    }
    const std::vector<int> kinds = NumberNames(places);
    for (size_t rank = 0; rank < kinds.size(); ++rank) {
      if (kinds[rank] == static_cast<int>(distinct.size())) distinct.push_back(places[rank]);
    }
    table = absl::StrCat(EncodeNumbers(NumberNames(names)), " ", planner::ToWord(costs_), " ",
                         EncodeNumbers(kinds), " ", absl::StrJoin(distinct, " "));
    WEFT_RETURN_IF_ERROR(options_.store->Set(key, table));
  } else {
    auto value = options_.store->Get(key, init.timeout);
    if (!value.ok()) {
      // Rank 0 waits for everybody's record.
      const std::vector<int> all = RankSet::Below(options_.world_size).ranks();
      std::vector<std::string> keys;
      for (int rank : all) keys.push_back(RecordKey(init.prefix, rank));
      return NameMissing(*options_.store, value.status(), "wait for rank 0's table of hosts", all,
                         keys);
    }
    table = *std::move(value);
  }
  const absl::Status status = TakeTable(table);
  return status.ok() ? status : Annotate(status, absl::StrCat("key ", key, " of the store"));
}

absl::Status EndpointImpl::TakeTable(absl::string_view table) {
  constexpr size_t kBefore = 3;  // words before the distinct places
  const std::vector<std::string> words = absl::StrSplit(table, ' ');
  if (words.size() <= kBefore) return absl::DataLossError("no table of hosts");
  WEFT_ASSIGN_OR_RETURN(const auto hosts, DecodeNumbers(words[0], options_.world_size));
  WEFT_ASSIGN_OR_RETURN(costs_, planner::FromWord(words[1]));
  WEFT_ASSIGN_OR_RETURN(const auto kinds, DecodeNumbers(words[2], options_.world_size));
  for (Peer& peer : peers_) {
    const size_t kind = kBefore + static_cast<size_t>(kinds[peer.rank.index()]);
    if (kind >= words.size()) return absl::DataLossError("a place is missing");
    peer.host = hosts[peer.rank.index()];
    RankPlace& place = places_[peer.rank.index()];
    WEFT_ASSIGN_OR_RETURN(place, RankPlaceFromWord(words[kind]));
    place.host = absl::StrCat(peer.host);
  }
  return absl::OkStatus();
}

// Shared memory within this host where it is allowed, the network's transport between hosts. Closes
// the transport that nobody is reached by.
absl::Status EndpointImpl::ChooseTransports() {
  bool used[kTransportsMax] = {};
  for (Peer& peer : peers_) {
    if (peer.rank == options_.rank) continue;
    const bool near = peer.host == host(options_.rank);
    peer.transport = transports_[0] != nullptr && (transports_[1] == nullptr || near) ? 0 : 1;
    used[peer.transport] = true;
  }
  for (int t = 0; t < kTransportsMax; ++t) {
    if (!used[t]) transports_[t].reset();
    if (transports_[t] == nullptr) continue;
    const int fd = transports_[t]->wait_fd();
    WEFT_RETURN_IF_ERROR(epoll_.Add(fd, EPOLLIN, {.fd = fd}));
  }
  return absl::OkStatus();
}

absl::Status EndpointImpl::TakeRecord(Peer& peer, const MemberRecord& record) {
  const std::vector<std::string> words = absl::StrSplit(record.address, ' ');
  if (words.size() != kTransportsMax + 1) {
    return absl::DataLossError(
        absl::StrCat("rank ", peer.rank.value(), " published no valid addresses"));
  }
  peer.address = FromWord(words[static_cast<size_t>(peer.transport)]);
  if (!peer.address.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", peer.rank.value(), " has another setting of \"transport\" than rank ",
                   options_.rank.value(), " (", options_.settings.Text("transport"), ")"));
}

}  // namespace weft::collectives
