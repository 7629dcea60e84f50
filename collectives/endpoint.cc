// How an endpoint opens: the job's secret, transports, addresses.
#include "collectives/endpoint.h"

#include <sys/epoll.h>
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
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/first_line.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"
#include "collectives/planner/own_place.h"
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
  peers_.resize(static_cast<size_t>(options_.world_size));
  for (int r = 0; r < options_.world_size; ++r) peers_[static_cast<size_t>(r)].rank = Rank(r);
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return ErrnoStatus(errno, "create an epoll descriptor");
  event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event_ < 0) return ErrnoStatus(errno, "create an eventfd");
  epoll_event event{.events = EPOLLIN, .data = {.fd = event_}};
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &event) < 0) {
    return ErrnoStatus(errno, "add an eventfd to an epoll descriptor");
  }
  WEFT_ASSIGN_OR_RETURN(forced_, planner::Forced::Create(options_.settings));
  if (options_.rank == Rank(0)) {
    WEFT_ASSIGN_OR_RETURN(const planner::Calibration calibration,
                          planner::LoadCalibration(options_.settings));
    costs_ = planner::TableFor(calibration, options_.settings, JobCores());
  }
  places_.resize(peers_.size());
  RankPlace& own = places_[options_.rank.index()];
  WEFT_ASSIGN_OR_RETURN(own, planner::OwnPlace(options_.settings));
  own.host = options_.host;
  int ranks_here = 1;
  if (options_.world_size > 1) {
    WEFT_RETURN_IF_ERROR(AgreeOnSecret());
    WEFT_RETURN_IF_ERROR(OpenTransports());
    WEFT_RETURN_IF_ERROR(ExchangeAddresses());
    for (const Peer& peer : peers_) {
      ranks_here += peer.rank != options_.rank && peer.host == options_.host;
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
    WEFT_ASSIGN_OR_RETURN(transports_[t], net::CreateTransport(kinds[t].first, options));
  }
  return absl::OkStatus();
}

absl::Status EndpointImpl::ExchangeAddresses() {
  std::string own = Word(options_.host);
  for (auto& transport : transports_) {
    absl::StrAppend(&own, " ", transport == nullptr ? "" : Word(transport->address()));
  }
  absl::StrAppend(&own, " ", ToWord(places_[options_.rank.index()]), " ",
                  options_.rank == Rank(0) ? planner::ToWord(costs_) : "-");
  auto all = options_.store->AllGather(absl::StrCat(options_.job, "/addresses"),
                                       options_.rank.value(), options_.world_size, own,
                                       options_.settings.Duration("store.timeout"));
  if (!all.ok()) return Annotate(all.status(), "learn the addresses of the other ranks");
  bool used[kTransportsMax] = {};
  for (Peer& peer : peers_) {
    const std::vector<std::string> words = absl::StrSplit((*all)[peer.rank.index()], ' ');
    if (words.size() != 3 + kTransportsMax) {
      return absl::DataLossError(
          absl::StrCat("rank ", peer.rank.value(), " published no valid addresses"));
    }
    peer.host = FromWord(words[0]);
    RankPlace& place = places_[peer.rank.index()];
    WEFT_ASSIGN_OR_RETURN(place, RankPlaceFromWord(words[1 + kTransportsMax]));
    place.host = peer.host;
    if (peer.rank == Rank(0)) {
      WEFT_ASSIGN_OR_RETURN(costs_, planner::FromWord(words.back()));
    }
    if (peer.rank == options_.rank) continue;
    peer.transport =
        transports_[0] != nullptr && (transports_[1] == nullptr || peer.host == options_.host) ? 0
                                                                                               : 1;
    peer.address = FromWord(words[1 + static_cast<size_t>(peer.transport)]);
    if (peer.address.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", peer.rank.value(), " has another setting of \"transport\" than rank ",
          options_.rank.value(), " (", options_.settings.Text("transport"), ")"));
    }
    used[peer.transport] = true;
  }
  for (int t = 0; t < kTransportsMax; ++t) {
    if (!used[t]) transports_[t].reset();
    if (transports_[t] == nullptr) continue;
    epoll_event event{.events = EPOLLIN, .data = {.fd = transports_[t]->wait_fd()}};
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, transports_[t]->wait_fd(), &event) < 0) {
      return ErrnoStatus(errno, "add a transport to an epoll descriptor");
    }
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
