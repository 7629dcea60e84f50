#include "tools/run/rank_process.h"

#include <signal.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::run {

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

std::string RankProcess::End() const {
  if (killed()) return absl::StrCat("was killed by ", SignalName(WTERMSIG(status)));
  return absl::StrCat("exited with status ", WEXITSTATUS(status));
}

collectives::ProcessEnd RankProcess::LastEnd() const {
  if (killed()) return {.signal = WTERMSIG(status)};
  const std::vector<std::string> lines = output->LastLines();
  return {.status = WEXITSTATUS(status),
          .cause = lines.empty() ? "" : collectives::CauseFrom(lines.back())};
}

std::string RankProcess::Outcome() const {
  return absl::StrFormat("%s after %.1f s", End(), absl::ToDoubleSeconds(ended - started));
}

std::string SummaryJson(int exit_status, int first_failed, const std::vector<RankProcess>& ranks) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const RankProcess& rank : ranks) {
    if (rank.pid < 0) continue;
    Json row = {{"rank", rank.rank}, {"pid", rank.pid}};
    row["exit"] = rank.killed() ? Json() : Json(WEXITSTATUS(rank.status));
    row["signal"] = rank.killed() ? Json(WTERMSIG(rank.status)) : Json();
    row["seconds"] = absl::ToDoubleSeconds(rank.ended - rank.started);
    row["max_rss"] = rank.max_rss_bytes;
    row["restarts"] = rank.restarts;
    rows.push_back(std::move(row));
  }
  Json summary = {{"exit_status", exit_status}};
  summary["first_failed"] = first_failed < 0 ? Json() : Json(first_failed);
  summary["ranks"] = std::move(rows);
  return summary.dump();
}

}  // namespace weft::run
