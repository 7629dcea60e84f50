#include "plugins/nccl/tuner.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/crc32c.h"
#include "base/read_file.h"
#include "base/status.h"
#include "plugins/nccl/net.h"
#if WEFT_HAS_FABRICS
#include "collectives/planner/fabric_network.h"
#include "topology/fabric/generator.h"
#include "topology/fabric/load.h"
#endif

namespace weft::nccl {
namespace {

namespace planner = collectives::planner;
using collectives::CollectiveKind;
using planner::NcclAlgorithm;
using planner::NcclNetwork;
using planner::NcclProtocol;

constexpr unsigned long kLogTuning = 0x40;  // NCCL_TUNING
constexpr size_t kKnownMax = 4096;          // sizes of one communicator
constexpr size_t kRanksMax = size_t{1} << 20;

// NCCL's numbers, abi/tuner.h.
constexpr std::pair<NcclAlgorithm, size_t> kAlgorithms[] = {
    {NcclAlgorithm::kTree, 0}, {NcclAlgorithm::kRing, 1}, {NcclAlgorithm::kPat, 6}};
constexpr NcclProtocol kProtocols[] = {NcclProtocol::kLl, NcclProtocol::kLl128,
                                       NcclProtocol::kSimple};

constexpr const char* kAlgorithmNames[abi::kTunerAlgorithms] = {
    "Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};

// An entry of a table of costs, by NCCL's numbers; below 0: none.
struct Entry {
  int algorithm = -1, protocol = -1;
};

// "Tree/LL128".
std::string NameOf(Entry entry) {
  const std::string protocol = entry.protocol < static_cast<int>(std::size(kProtocols))
                                   ? ToString(kProtocols[entry.protocol])
                                   : absl::StrCat("protocol ", entry.protocol);
  return entry.algorithm < abi::kTunerAlgorithms
             ? absl::StrCat(kAlgorithmNames[entry.algorithm], "/", protocol)
             : absl::StrCat("algorithm ", entry.algorithm, "/", protocol);
}

std::optional<CollectiveKind> KindOf(abi::Collective collective) {
  switch (collective) {
    case abi::kBroadcast:
      return CollectiveKind::kBroadcast;
    case abi::kReduce:
      return CollectiveKind::kReduce;
    case abi::kAllGather:
      return CollectiveKind::kAllGather;
    case abi::kReduceScatter:
      return CollectiveKind::kReduceScatter;
    case abi::kAllReduce:
      return CollectiveKind::kAllReduce;
  }
  return std::nullopt;
}

std::string Describe(const NcclNetwork& network) {
  return absl::StrCat(network.nics, network.nics == 1 ? " NIC" : " NICs", " of ",
                      ToString(network.nic), " a host, ", absl::FormatDuration(network.delay),
                      " one way");
}

// The network of the fabric's first `nodes` hosts: NCCL does not say which of them a communicator
// has, and `weft-plan collective --hosts N` takes these.
absl::StatusOr<NcclNetwork> NetworkOfFabric(const std::string& name, size_t nodes,
                                            std::string* why) {
#if WEFT_HAS_FABRICS
  WEFT_ASSIGN_OR_RETURN(const topology::Fabric fabric, topology::LoadFabric(name));
  const size_t there = fabric.hosts().size();
  if (nodes > there) {
    return absl::FailedPreconditionError(absl::StrCat("as nccl.fabric=", name, " has ", there,
                                                      there == 1 ? " host" : " hosts",
                                                      ", and the communicator ", nodes));
  }
  const absl::Span<const NodeId> hosts = fabric.hosts().subspan(0, nodes);
  WEFT_ASSIGN_OR_RETURN(const planner::FabricNetwork network, planner::NetworkOf(fabric, hosts));
  NcclNetwork out{
      .nics = network.nics, .nic = network.nic, .delay = network.delay, .hosts = network.places};
  const collectives::GroupPlace group(out.hosts);
  std::string checksum, switches;
  if (!topology::IsGenerator(name)) {
    WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(name));
    checksum = absl::StrFormat(", checksum %08x", Crc32c(text));
  }
  if (group.switches.size() >= 2) {
    switches = absl::StrCat(", ", group.switches.size(), " switches");
    if (group.switch_rate > 0) {
      absl::StrAppend(&switches, " with cables of ",
                      ToString(Bandwidth::BytesPerSecond(group.switch_rate)), " to others");
    }
  }
  *why = absl::StrCat("by nccl.fabric=", name,
                      nodes < there ? absl::StrCat(", its first ", nodes, " hosts") : "", " (",
                      Describe(out), switches, checksum, ")");
  return out;
#else
  (void)why, (void)nodes;
  return absl::UnimplementedError(
      absl::StrCat("nccl.fabric=", name, ": this build has no fabrics (WEFT_PLANNING)"));
#endif
}

absl::StatusOr<NcclNetwork> NetworkOfDevices(std::string* why) {
  NcclNetwork network{.nics = 0};
  int count = 0;
  if (Devices(&count) != abi::kSuccess) count = 0;
  for (int i = 0; i < count; ++i) {
    abi::PropertiesV12 properties;
    if (Properties(i, &properties) != abi::kSuccess || properties.speed <= 0) continue;
    // A merged device is its parts, which are counted.
    if (properties.virtual_device.count != 1 || properties.virtual_device.devices[0] != i) continue;
    const Bandwidth rate = Bandwidth::GigabitsPerSecond(properties.speed / 1e3);
    network.nic = network.nics == 0 ? rate : std::min(network.nic, rate);
    ++network.nics;
  }
  if (network.nics == 0) {
    return absl::FailedPreconditionError(
        "nccl.tuner=devices, but the net plugin has no device whose speed is known");
  }
  *why = absl::StrCat("by this host's devices (", Describe(network), ")");
  return network;
}

}  // namespace

void Tuner::Log(unsigned long flags, absl::string_view text) const {
  if (log_ == nullptr) return;
  log_(abi::kLogInfo, flags, "weft", 0, "TUNER/Weft : %s", std::string(text).c_str());
}

std::unique_ptr<Tuner> Tuner::Create(size_t ranks, size_t nodes, abi::LogFunction log) {
  std::unique_ptr<Tuner> tuner(new Tuner(log));
  const std::string shape = absl::StrCat(ranks, " ranks on ", nodes, " hosts: ");
  absl::StatusOr<std::string> why;
  try {
    why = tuner->Open(ranks, nodes);
  } catch (const std::exception& error) {
    why = absl::InternalError(error.what());
  }
  if (!why.ok()) tuner->times_.reset();
  tuner->Log(abi::kLogInit | kLogTuning,
             why.ok() ? absl::StrCat(shape, "algorithms ", *why)
                      : absl::StrCat(shape, "NCCL's own choice stays, ", why.status().message()));
  return tuner;
}

absl::StatusOr<std::string> Tuner::Open(size_t ranks, size_t nodes) {
  Settings settings(LibrarySettings());
  WEFT_RETURN_IF_ERROR(settings.SetFromEnvironment(/*strict=*/false));
  const std::string& mode = settings.Text("nccl.tuner");
  const std::string& fabric = settings.Text("nccl.fabric");
  if (mode == "off") return absl::CancelledError("as nccl.tuner=off");
  if (mode == "auto" && fabric.empty()) {
    return absl::CancelledError("as nccl.fabric names no fabric");
  }
  if (nodes < 2) return absl::CancelledError("as no network is between the ranks");
  if (ranks < nodes || ranks > kRanksMax) {
    return absl::InvalidArgumentError("as there are no such communicators");
  }
  std::string why;
  absl::StatusOr<NcclNetwork> network =
      mode == "devices" ? NetworkOfDevices(&why) : NetworkOfFabric(fabric, nodes, &why);
  if (!network.ok()) return network.status();
  times_.emplace(static_cast<int>(ranks), static_cast<int>(nodes), *network);
  return why;
}

std::optional<Tuner::Times> Tuner::TimesOf(abi::Collective collective, size_t bytes) {
  if (!times_.has_value()) return std::nullopt;
  const std::optional<CollectiveKind> kind = KindOf(collective);
  if (!kind.has_value()) return std::nullopt;
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = known_.find({collective, bytes});
  if (found != known_.end()) return found->second.times;
  if (known_.size() >= kKnownMax) known_.clear();
  Times times;
  for (auto& row : times) row.fill(abi::kCostIgnore);
  for (const auto& [algorithm, a] : kAlgorithms) {
    for (size_t p = 0; p < std::size(kProtocols); ++p) {
      const auto time = times_->Predict(*kind, bytes, algorithm, kProtocols[p]);
      if (time.has_value()) times[a][p] = static_cast<float>(absl::ToDoubleMicroseconds(*time));
    }
  }
  known_.emplace(std::pair(collective, bytes), Answer{times});
  return times;
}

void Tuner::Say(abi::Collective collective, size_t bytes, absl::string_view what) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = known_.find({collective, bytes});
    if (found == known_.end() || std::exchange(found->second.logged, true)) return;
  }
  Log(kLogTuning,
      absl::StrCat(collectives::ToString(*KindOf(collective)), " of ", bytes, " bytes: ", what));
}

void Tuner::FillCosts(abi::Collective collective, size_t bytes, float* costs, int algorithms,
                      int protocols) {
  const std::optional<Times> times = TimesOf(collective, bytes);
  if (!times.has_value() || costs == nullptr) return;
  auto modelled = [&](int a, int p) {
    return a < abi::kTunerAlgorithms && p < abi::kTunerProtocols &&
           (*times)[static_cast<size_t>(a)][static_cast<size_t>(p)] >= 0;
  };
  auto at = [&](int a, int p) -> float& { return costs[a * protocols + p]; };
  auto time_of = [&](Entry entry) {
    return (*times)[static_cast<size_t>(entry.algorithm)][static_cast<size_t>(entry.protocol)];
  };
  // NCCL's least costs with and without a model, and ours.
  float theirs = -1, others = -1, ours = -1;
  Entry their_entry, other_entry, our_entry;
  for (int a = 0; a < algorithms; ++a) {
    for (int p = 0; p < protocols; ++p) {
      const float cost = at(a, p);
      if (cost < 0) continue;
      float& least = modelled(a, p) ? theirs : others;
      if (least < 0 || cost < least) {
        least = cost;
        (modelled(a, p) ? their_entry : other_entry) = {a, p};
      }
      if (!modelled(a, p)) continue;
      const float time = time_of({a, p});
      if (ours < 0 || time < ours) ours = time, our_entry = {a, p};
    }
  }
  if (theirs < 0 || ours <= 0) return;
  if (others >= 0 && others < theirs) {
    Say(collective, bytes,
        absl::StrFormat("%s stays, NCCL's own choice, of which there is no model; %s would take "
                        "%.1f us",
                        NameOf(other_entry), NameOf(our_entry), ours));
    return;
  }
  Say(collective, bytes,
      absl::StrFormat("%s, %.1f us; NCCL alone takes %s, %.1f us", NameOf(our_entry), ours,
                      NameOf(their_entry), time_of(their_entry)));
  for (int a = 0; a < algorithms; ++a) {
    for (int p = 0; p < protocols; ++p) {
      if (at(a, p) < 0 || !modelled(a, p)) continue;
      at(a, p) = (*times)[static_cast<size_t>(a)][static_cast<size_t>(p)] / ours * theirs;
    }
  }
}

void Tuner::Choose(abi::Collective collective, size_t bytes, int* algorithm, int* protocol) {
  if (std::getenv("NCCL_ALGO") != nullptr || std::getenv("NCCL_PROTO") != nullptr) return;
  const std::optional<Times> times = TimesOf(collective, bytes);
  if (!times.has_value()) return;
  constexpr int kRing = 1, kTree = 0, kLl = 0, kSimple = 2;
  float least = -1;
  for (int a : {kRing, kTree}) {
    for (int p : {kSimple, kLl}) {
      const float time = (*times)[static_cast<size_t>(a)][static_cast<size_t>(p)];
      if (time < 0 || (least >= 0 && time >= least)) continue;
      least = time;
      *algorithm = a;
      *protocol = p;
    }
  }
  if (least < 0) return;
  Say(collective, bytes, absl::StrFormat("%s, %.1f us", NameOf({*algorithm, *protocol}), least));
}

}  // namespace weft::nccl
