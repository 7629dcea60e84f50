#include "tools/bw/link/link_command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tools/bw/link/bootstrap.h"
#include "tools/bw/link/flows.h"
#include "tools/bw/link/host_facts.h"
#include "tools/bw/link/measure.h"
#include "tools/bw/link/measured_links.h"
#include "tools/bw/link/options.h"
#include "tools/bw/link/report.h"
#include "tools/job/job.h"

namespace weft::link_bw {
namespace {

constexpr int kUsage = 2, kLimitMissed = 3;

// One line on a terminal, in the place of the last.
class ProgressLine {
 public:
  ProgressLine(bool wanted, const Load& load, size_t steps)
      : wanted_(wanted && isatty(STDERR_FILENO) != 0 && steps > 1),
        left_(steps),
        each_(load.iterations > 0 ? absl::ZeroDuration() : load.duration * 1.4) {}
  void Next(Bytes size) {
    if (!wanted_) return;
    absl::FPrintF(stderr, "\r\033[K%s; %d to go", weft::ToString(size), left_);
    if (each_ > absl::ZeroDuration()) {
      absl::FPrintF(stderr, ", %.0f s left",
                    absl::ToDoubleSeconds(each_) * static_cast<double>(left_));
    }
    --left_;
  }
  void Clear() const {
    if (wanted_) absl::FPrintF(stderr, "\r\033[K");
  }

 private:
  const bool wanted_;
  size_t left_;
  const absl::Duration each_;
};

// The client, or the last rank, says what is done: a server needs no options of its own.
absl::Status Agree(Bootstrap& bootstrap, Options& options) {
  const nlohmann::json mine = options.load.ToJson();
  WEFT_ASSIGN_OR_RETURN(auto all, bootstrap.AllGatherJson(mine, [] { usleep(1000); }));
  WEFT_ASSIGN_OR_RETURN(options.load, Load::FromJson(all.back()));
  return absl::OkStatus();
}

std::vector<std::vector<Flow>> RoundsOf(const Load& load, std::vector<Flow> flows) {
  if (!load.in_turn || load.test == Test::kSteps) return {std::move(flows)};
  std::vector<std::vector<Flow>> rounds;
  rounds.reserve(flows.size());
  for (const Flow& flow : flows) rounds.push_back({flow});
  return rounds;
}

absl::StatusOr<int> RunRank(Options options) {
  WEFT_ASSIGN_OR_RETURN(Bootstrap bootstrap, Bootstrap::Join(options));
  WEFT_RETURN_IF_ERROR(Agree(bootstrap, options));
  const Load& load = options.load;
  WEFT_ASSIGN_OR_RETURN(std::vector<Flow> flows, FlowsOf(load, bootstrap.ranks()));
  std::set<int> targets, sources;
  for (const Flow& flow : flows) {
    const bool answers = load.test == Test::kLatency;
    if (flow.from == bootstrap.rank() || (answers && flow.to == bootstrap.rank())) {
      targets.insert(flow.from == bootstrap.rank() ? flow.to : flow.from);
    }
    if (flow.to == bootstrap.rank() || (answers && flow.from == bootstrap.rank())) {
      sources.insert(flow.to == bootstrap.rank() ? flow.from : flow.to);
    }
  }
  WEFT_ASSIGN_OR_RETURN(auto links,
                        MeasuredLinks::Create(bootstrap, load, options.settings, targets, sources));
  RankUse host;
  LearnHost(links->transport().address(), host);

  // Whoever was told what to do says what came of it: the client, and in a job rank 0.
  const bool speaks = bootstrap.rank() == (options.host.empty() ? 0 : 1);
  Report report(options, bootstrap.ranks(), !speaks);
  WEFT_ASSIGN_OR_RETURN(auto descriptions,
                        bootstrap.AllGather(links->Describe(), [&] { links->Serve(); }));
  std::string all_links;
  for (const std::string& part : descriptions) all_links += part;
  report.Begin(all_links);
  const std::vector<std::vector<Flow>> rounds = RoundsOf(load, flows);
  size_t left = rounds.size() * load.sizes.size();
  ProgressLine progress(speaks, load, left);
  for (Bytes size : load.sizes) {
    for (const std::vector<Flow>& round : rounds) {
      progress.Next(size);
      WEFT_ASSIGN_OR_RETURN(Row row, MeasureSize(bootstrap, *links, load, round, size, host));
      progress.Clear();
      report.Add(row, --left == 0);
    }
  }
  WEFT_RETURN_IF_ERROR(bootstrap.AllGather("", [&] { links->Serve(); }).status());
  WEFT_RETURN_IF_ERROR(report.End());
  if (report.wrong() > 0) return EXIT_FAILURE;
  return report.limits_kept() ? EXIT_SUCCESS : kLimitMissed;
}

absl::StatusOr<int> Start(const Options& options, int argc, char** argv) {
  if (options.ranks == 0) return RunRank(options);
  WEFT_RETURN_IF_ERROR(FlowsOf(options.load, options.ranks).status());  // before they start
  return job::BecomeLauncher(options.ranks, argc, argv);
}

}  // namespace

int RunLinkCommand(int argc, char** argv) {
  Parsed parsed = ParseCommandLine(argc - 1, argv + 1);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const absl::StatusOr<int> status = Start(parsed.options, argc, argv);
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-bw link: %s\n", std::string(status.status().message()));
  return absl::IsInvalidArgument(status.status()) ? kUsage : EXIT_FAILURE;
}

}  // namespace weft::link_bw
