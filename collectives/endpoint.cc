// How an endpoint opens: the job's secret, links, what the ranks know of each other.
#include "collectives/endpoint.h"

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
#include "base/clock.h"
#include "base/first_line.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"
#include "collectives/group_place.h"
#include "collectives/planner/concurrent.h"
#include "collectives/planner/own_place.h"
#include "collectives/progress_cpus.h"
#include "topology/host/affinity.h"
#include "topology/host/thread_binding.h"

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

}  // namespace

absl::StatusOr<std::shared_ptr<Endpoint>> Endpoint::Create(EndpointOptions options) {
  return CreateRejoinable(RejoinableOptions(std::move(options)));
}

Rejoinable& AsRejoinable(Endpoint& endpoint) { return static_cast<EndpointImpl&>(endpoint); }

absl::StatusOr<std::shared_ptr<Endpoint>> CreateRejoinable(RejoinableOptions options) {
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

EndpointImpl::EndpointImpl(RejoinableOptions options) : options_(std::move(options)) {}

absl::Status EndpointImpl::Open() {
  if (options_.rejoining.has_value()) epoch_ = options_.rejoining->epoch;
  if (options_.host.empty()) {
    WEFT_ASSIGN_OR_RETURN(options_.host, ThisHost());
  }
  recorder_ = Recorder(options_.settings, options_.job, options_.rank.value(), options_.world_size);
  WEFT_RETURN_IF_ERROR(driver_.Open());
  WEFT_ASSIGN_OR_RETURN(group_settings_, GroupSettings::From(options_.settings));
  WEFT_ASSIGN_OR_RETURN(
      axes_at_once_, planner::ParseAxesAtOnce(options_.settings.Text("collective.axes_at_once")));
  RankDirectory::Own own;
  WEFT_ASSIGN_OR_RETURN(own.place, planner::OwnPlace(options_.settings));
  const int job_cores = JobCores();
  if (options_.rank == Rank(0)) {
    WEFT_ASSIGN_OR_RETURN(own.costs, planner::LoadTable(options_.settings, job_cores,
                                                        /*has_peers=*/options_.world_size > 1));
  }
  const int64_t start_ns = SystemClock::Nanoseconds();
  if (options_.world_size > 1) WEFT_RETURN_IF_ERROR(AgreeOnSecret());
  WEFT_RETURN_IF_ERROR(links_.Open(options_));
  if (options_.world_size > 1) {
    // A plan that cannot be read has been refused by the transports that need it.
    if (auto planned = planner::PlannedPeers::Load(options_.settings); planned.ok()) {
      planned_ = *std::move(planned);
    }
    own.place.plan = planned_.name();
  }
  const int64_t open_ns = SystemClock::Nanoseconds();
  WEFT_RETURN_IF_ERROR(LearnRanks(std::move(own)));
  if (options_.world_size > 1) {
    start_phases_ = {{"transports", absl::Nanoseconds(open_ns - start_ns)},
                     {"exchange", absl::Nanoseconds(SystemClock::Nanoseconds() - open_ns)}};
  }
  const auto ranks_here =
      std::count_if(links_.peers().begin(), links_.peers().end(),
                    [this](const Peer& peer) { return host(peer.rank) == host(rank()); });
  if (options_.world_size > 1) {
    // A rank that spins while ranks outnumber cores keeps the rank that it waits for from running.
    const bool may_spin = ranks_here <= job_cores;
    WEFT_ASSIGN_OR_RETURN(CpuSet cpus, CpusOfProgress(/*fill_cores=*/ranks_here >= job_cores));
    driver_.Begin(may_spin ? options_.settings.Duration("wait.spin") : absl::ZeroDuration(),
                  options_.settings.Duration("wait.yield"), std::move(cpus));
  }
  return absl::OkStatus();
}

std::shared_ptr<const GroupPlace> EndpointImpl::PlaceOf(absl::Span<const Rank> ranks) const {
  std::vector<RankPlace> places;
  for (Rank rank : ranks) places.push_back(place(rank));
  auto out = std::make_shared<const GroupPlace>(places, planned_.Within(ranks, places));
  return out->hosts.size() > 1 ? out : nullptr;
}

// Empty: all of the process's. Where ranks fill the cores of a host, each of them has few, and its
// threads compute on all of these: the progress thread then runs wherever one is idle.
absl::StatusOr<CpuSet> EndpointImpl::CpusOfProgress(bool fill_cores) const {
  const bool is_asked_for = options_.settings.Text("progress.cpus") != "near";
  if (!is_asked_for && fill_cores) return CpuSet();
  const absl::StatusOr<CpuSet> process = ProcessCpus();
  if (!process.ok()) return CpuSet();
  WEFT_ASSIGN_OR_RETURN(CpuSet cpus, ProgressCpus(options_.settings, *process));
  return cpus == *process ? CpuSet() : cpus;
}

absl::Status EndpointImpl::AgreeOnSecret() {
  if (options_.secret != net::JobSecret{}) return absl::OkStatus();
  const std::string key = absl::StrCat(options_.job, "/secret");
  absl::StatusOr<std::string> text = absl::UnimplementedError("");
  if (!options_.rejoining.has_value()) {
    std::string drawn(options_.secret.size(), '\0');
    if (getrandom(drawn.data(), drawn.size(), 0) != static_cast<ssize_t>(drawn.size())) {
      return ErrnoStatus(errno, "draw the job's secret");
    }
    drawn = absl::BytesToHexString(drawn);
    // The first one's counts, so that nobody waits for rank 0. A store of PyTorch's may lack this.
    text = options_.store->CompareSet(key, "", drawn);
    const bool lacks = absl::IsUnimplemented(text.status()) || absl::IsInternal(text.status());
    if (!text.ok() && !lacks) return Annotate(text.status(), "agree on the job's secret");
    if (lacks && options_.rank == Rank(0)) {
      WEFT_RETURN_IF_ERROR(options_.store->Set(key, drawn));
      text = drawn;
    }
  }
  if (!text.ok()) text = options_.store->Get(key, options_.settings.Duration("store.timeout"));
  if (!text.ok()) return Annotate(text.status(), "wait for the job's secret");
  const std::string secret = absl::HexStringToBytes(*text);
  if (secret.size() != options_.secret.size()) {
    return absl::DataLossError(absl::StrCat("key ", key, " of the store holds no secret"));
  }
  std::copy(secret.begin(), secret.end(), options_.secret.begin());
  return absl::OkStatus();
}

absl::Status EndpointImpl::LearnRanks(RankDirectory::Own own) {
  for (size_t t = 0; t < links_.transports().size(); ++t) {
    const auto& transport = links_.transports()[t];
    if (transport != nullptr) own.addresses[t] = transport->address();
  }
  WEFT_ASSIGN_OR_RETURN(
      RankDirectory::Addresses addresses,
      directory_.Exchange(options_, std::move(own),
                          [this](Rank rank, absl::StatusOr<std::string> address) {
                            driver_.Post([this, rank, address = std::move(address)] {
                              Peer& peer = links_.of(rank);
                              if (address.ok()) peer.address = *address;
                              if (address.ok() || !peer.gone.ok()) return;
                              links_.MarkGone(peer, address.status(), now_ns_);
                            });
                          }));
  for (auto& [rank, address] : addresses) links_.of(rank).address = std::move(address);
  links_.Use([this](Rank rank) { return directory_.transport(rank); });
  for (const auto& transport : links_.transports()) {
    if (transport != nullptr) WEFT_RETURN_IF_ERROR(driver_.Watch(transport->wait_fd()));
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
