#include "topology/discovery/verify.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/discovery/trace.h"
#include "topology/fabric/file.h"
#include "topology/plan/connection_plan.h"

namespace weft::topology {
namespace {

constexpr int kTriesPerFlow = 8;  // flows that are looked at to find one with a choice

}  // namespace

std::string Verified::ToString() const {
  std::string text = absl::StrCat(asked, " flows asked for: ", right, " as planned");
  if (silent > 0) absl::StrAppend(&text, ", ", silent, " without an answer");
  if (HasMoved()) {
    absl::StrAppend(&text, ", ", asked - right - silent, " on other paths, as ", example);
  }
  return text;
}

absl::StatusOr<Verified> VerifyPaths(const Fabric& fabric, const HashFile& known,
                                     absl::string_view origin, const VerifyOptions& options) {
  WEFT_ASSIGN_OR_RETURN(NodeId own, fabric.Find(options.host));
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, MakeHashes(fabric, known, origin));
  WEFT_RETURN_IF_ERROR(Routes::Feasible(fabric));
  const Routes routes(fabric);
  const Endpoint source{own, 0};
  SystemClock clock;
  const absl::Time deadline = clock.Now() + options.limit;
  Random random(static_cast<uint64_t>(absl::ToUnixNanos(clock.Now())));
  Verified out;
  TraceStatistics statistics;
  for (int tries = 0; tries < options.flows * kTriesPerFlow && out.asked < options.flows; ++tries) {
    if (clock.Now() >= deadline) break;
    const NodeId other = fabric.hosts()[random.Below(fabric.hosts().size())];
    const Endpoint target{other, 0};
    if (other == own || routes.Hops(source, target) < 4) continue;  // no switch above the first
    const auto port = static_cast<uint16_t>(0xC000 + random.Below(0x3000));
    const FiveTuple tuple = hashes.Tuple(source, target, port, kRoceTargetPort, kProtocolUdp);
    WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> path, hashes.Path(routes, source, target, tuple));
    TraceOptions trace;
    trace.source = tuple.source;
    trace.target = tuple.target;
    trace.timeout = options.timeout;
    trace.rounds = 2;
    WEFT_ASSIGN_OR_RETURN(const std::string name, NameAt(trace, port, 2, statistics));
    ++out.asked;
    auto found = known.routers.find(name);
    if (found == known.routers.end()) {
      ++out.silent;
      continue;
    }
    const std::string& planned = fabric.node(fabric.link(path[1]).target).name;
    if (found->second == planned) {
      ++out.right;
    } else {
      out.example = absl::StrCat("UDP port ", port, " to ", fabric.node(other).name, " (",
                                 tuple.target.ToString(), "): ", found->second, ", not ", planned);
    }
  }
  return out;
}

absl::StatusOr<Verified> VerifyPlan(const std::string& folder, const VerifyOptions& options) {
  const std::filesystem::path path(folder);
  const std::string fabric_path = (path / "fabric.toml").string();
  const std::string hashes_path = (path / "hashes.txt").string();
  WEFT_ASSIGN_OR_RETURN(auto plan, ConnectionPlan::Load(folder));
  WEFT_ASSIGN_OR_RETURN(std::string fabric_text, ReadFile(fabric_path));
  WEFT_ASSIGN_OR_RETURN(std::string hashes_text, ReadFile(hashes_path));
  if (Fingerprint(absl::StrCat(fabric_text, hashes_text)) != plan->text().fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat(plan->origin(),
                     " is stale: it was planned for another fabric.toml or hashes.txt "
                     "than those beside it; plan again with weft-plan paths --out ",
                     folder));
  }
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, ReadFabric(fabric_text, fabric_path));
  WEFT_ASSIGN_OR_RETURN(HashFile known, ParseHashFile(hashes_text, hashes_path));
  return VerifyPaths(fabric, known, hashes_path, options);
}

}  // namespace weft::topology
