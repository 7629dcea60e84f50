#include "tools/bw/link/measurement.h"

#include <unistd.h>

#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tools/bw/link/bootstrap.h"
#include "tools/bw/link/flows.h"
#include "tools/bw/link/host_facts.h"
#include "tools/bw/link/measured_links.h"

namespace weft::link_bw {
namespace {

// The client, or the last rank, says what is done: a server needs no options of its own.
absl::StatusOr<Load> Agree(Bootstrap& bootstrap, const Load& load) {
  WEFT_ASSIGN_OR_RETURN(auto all, bootstrap.AllGatherJson(load.ToJson(), [] { usleep(1000); }));
  return Load::FromJson(all.back());
}

std::vector<std::vector<Flow>> RoundsOf(const Load& load, std::vector<Flow> flows) {
  if (!load.in_turn || load.test == Test::kSteps) return {std::move(flows)};
  std::vector<std::vector<Flow>> rounds;
  rounds.reserve(flows.size());
  for (const Flow& flow : flows) rounds.push_back({flow});
  return rounds;
}

// The ranks that this one sends to, and those it receives from.
struct Neighbours {
  std::set<int> targets, sources;
};
Neighbours NeighboursOf(int rank, const Load& load, const std::vector<Flow>& flows) {
  Neighbours out;
  for (const Flow& flow : flows) {
    const bool answers = load.test == Test::kLatency;
    if (flow.from == rank || (answers && flow.to == rank)) {
      out.targets.insert(flow.from == rank ? flow.to : flow.from);
    }
    if (flow.to == rank || (answers && flow.from == rank)) {
      out.sources.insert(flow.to == rank ? flow.from : flow.to);
    }
  }
  return out;
}

}  // namespace

absl::Status MeasureLinks(const Options& options, MeasurementObserver& observer) {
  WEFT_ASSIGN_OR_RETURN(Bootstrap bootstrap, Bootstrap::Join(options));
  WEFT_ASSIGN_OR_RETURN(const Load load, Agree(bootstrap, options.load));
  WEFT_ASSIGN_OR_RETURN(const std::vector<Flow> flows, FlowsOf(load, bootstrap.ranks()));
  const Neighbours neighbours = NeighboursOf(bootstrap.rank(), load, flows);
  WEFT_ASSIGN_OR_RETURN(auto links, MeasuredLinks::Create(bootstrap, load, options.settings,
                                                          neighbours.targets, neighbours.sources));
  RankUse host;
  LearnHost(links->transport().address(), host);
  WEFT_ASSIGN_OR_RETURN(auto descriptions,
                        bootstrap.AllGather(links->Describe(), [&] { links->Serve(); }));
  std::string all_links;
  for (const std::string& part : descriptions) all_links += part;
  const std::vector<std::vector<Flow>> rounds = RoundsOf(load, flows);
  size_t left = rounds.size() * load.sizes.size();
  // Whoever was told what to do says what came of it.
  const bool speaks = bootstrap.rank() == (options.host.empty() ? 0 : 1);
  observer.OnBegin(load, bootstrap.ranks(), speaks, left, all_links);
  for (Bytes size : load.sizes) {
    for (const std::vector<Flow>& round : rounds) {
      observer.OnSize(size);
      WEFT_ASSIGN_OR_RETURN(Row row, MeasureSize(bootstrap, *links, load, round, size, host));
      observer.OnRow(row, --left == 0);
    }
  }
  return bootstrap.AllGather("", [&] { links->Serve(); }).status();
}

}  // namespace weft::link_bw
