#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/ecmp/hash_text.h"
#include "topology/plan/connection_plan.h"

namespace weft::topology {
namespace {

using Words = absl::Span<const absl::string_view>;
constexpr absl::string_view kMagic = "weft-paths";

absl::Status Bad(absl::string_view why) { return absl::InvalidArgumentError(why); }

absl::StatusOr<PathChoice> ParseChoice(absl::string_view word) {
  const size_t arrow = word.find('>');  // no name has one
  const absl::string_view member = word.substr(0, arrow);
  const size_t colon = member.rfind(':'), slash = member.rfind('/');
  PathChoice choice;
  const bool good = colon != absl::string_view::npos && slash != absl::string_view::npos &&
                    colon < slash &&
                    absl::SimpleAtoi(member.substr(colon + 1, slash - colon - 1), &choice.index) &&
                    absl::SimpleAtoi(member.substr(slash + 1), &choice.count) &&
                    choice.index < choice.count && choice.count <= 4096;
  if (!good) {
    return Bad(absl::StrCat("\"", word, "\" is no choice; right is leaf0:1/4"));
  }
  choice.at = std::string(word.substr(0, colon));
  if (arrow != absl::string_view::npos) choice.to = std::string(word.substr(arrow + 1));
  return choice;
}

// Seconds, then choices.
absl::StatusOr<PathWay> ParseWay(Words words) {
  PathWay way;
  if (words.empty() || !absl::SimpleAtod(words[0], &way.seconds) || !(way.seconds >= 0)) {
    return Bad("there is no number of seconds before the choices");
  }
  for (absl::string_view word : words.subspan(1)) {
    WEFT_ASSIGN_OR_RETURN(PathChoice choice, ParseChoice(word));
    way.choices.push_back(std::move(choice));
  }
  return way;
}

absl::StatusOr<std::pair<std::string, int>> ParseNic(absl::string_view word) {
  const size_t colon = word.rfind(':');
  int nic = -1;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(word.substr(colon + 1), &nic) ||
      nic < 0) {
    return Bad(absl::StrCat("\"", word, "\" is no NIC of a host; right is h0:0"));
  }
  return std::pair(std::string(word.substr(0, colon)), nic);
}

class Reader {
 public:
  absl::Status Take(Words words) {
    if (!begun_) {
      if (words.size() != 2 || words[0] != kMagic || words[1] != "1") {
        return Bad(
            "this is no plan of paths of this version: its first line is not \"weft-paths 1\"");
      }
      begun_ = true;
      return absl::OkStatus();
    }
    ++lines_;
    if (words[0] == "lines" && words.size() == 2 &&
        absl::SimpleAtoi(words[1], &lines_stated_.emplace())) {
      lines_ = 0;
      return absl::OkStatus();
    }
    if (words[0] == "fingerprint" && words.size() == 2) {
      plan_.fingerprint = std::string(words[1]);
      return absl::OkStatus();
    }
    if (words[0] == "ranks" && words.size() == 2 && absl::SimpleAtoi(words[1], &plan_.ranks)) {
      return absl::OkStatus();
    }
    if (words[0] == "host") return TakeHost(words);
    if (words[0] == "hash" && words.size() == 3) {
      WEFT_ASSIGN_OR_RETURN(SwitchHash hash, ParseHash(words[2]));
      plan_.hashes.emplace(std::string(words[1]), hash);
      return absl::OkStatus();
    }
    if (words[0] == "router" && words.size() == 3) {
      plan_.routers[std::string(words[1])] = std::string(words[2]);
      return absl::OkStatus();
    }
    if (words[0] == "detour" && words.size() >= 4) return TakeDetour(words);
    if (words[0] == "rate" && words.size() >= 3) return TakeRate(words);
    if (words[0] == "flow" && words.size() >= 6) return TakeFlow(words);
    if (words[0] == "spare" && words.size() >= 4) {
      WEFT_ASSIGN_OR_RETURN(PathWay way, ParseWay(words.subspan(3)));
      WEFT_RETURN_IF_ERROR(CheckHashes(way));
      plan_.spares[{std::string(words[1]), std::string(words[2])}].push_back(std::move(way));
      return absl::OkStatus();
    }
    return Bad(absl::StrCat("\"", words[0], "\" with ", words.size() - 1,
                            " words behind it is no line of a plan; lines begin with fingerprint, "
                            "lines, ranks, host, hash, router, flow, detour, rate or spare"));
  }

  // `is_last_line_whole`: the text ends with the end of a line.
  absl::StatusOr<ConnectionPlanText> Finish(bool is_last_line_whole) && {
    if (!begun_) return Bad("it is empty");
    if (lines_stated_.has_value() && (lines_ != *lines_stated_ || !is_last_line_whole)) {
      return Bad(absl::StrCat("it is not whole: of ", *lines_stated_, " lines behind \"lines\" ",
                              is_last_line_whole ? lines_ : lines_ - 1,
                              " are there; copy the plan directory again"));
    }
    if (plan_.hosts.empty()) return Bad("it names no host");
    for (auto& [over, ways] : plan_.detours) {
      for (auto& [flow, way] : ways) way.rate = plan_.flows[static_cast<size_t>(flow)].way.rate;
    }
    return std::move(plan_);
  }

 private:
  absl::Status TakeHost(Words words) {
    if (words.size() < 4 || words.size() % 2 != 0) {
      return Bad("a line of a host is \"host NAME ADDRESS SWITCH [ADDRESS SWITCH ...]\"");
    }
    ConnectionPlanHost host{std::string(words[1]), {}, {}};
    for (size_t i = 2; i < words.size(); i += 2) {
      WEFT_ASSIGN_OR_RETURN(IpAddress address, IpAddress::Parse(words[i]));
      host.addresses.push_back(address);
      host.leaves.emplace_back(words[i + 1]);
    }
    if (!nics_.try_emplace(host.name, host.addresses.size()).second) {
      return Bad(absl::StrCat("host ", host.name, " is there twice"));
    }
    plan_.hosts.push_back(std::move(host));
    return absl::OkStatus();
  }

  absl::Status TakeFlow(Words words) {
    ConnectionPlanFlow flow;
    if (!absl::SimpleAtoi(words[1], &flow.rank) || !absl::SimpleAtoi(words[2], &flow.peer) ||
        flow.rank < 0 || flow.peer < 0) {
      return Bad("a flow does not begin with two ranks");
    }
    WEFT_ASSIGN_OR_RETURN(const auto source, ParseNic(words[3]));
    WEFT_ASSIGN_OR_RETURN(const auto target, ParseNic(words[4]));
    for (const auto& [name, nic] : {source, target}) {
      auto known = nics_.find(name);
      if (known == nics_.end() || static_cast<size_t>(nic) >= known->second) {
        return Bad(absl::StrCat("no line before says what address ", name, ":", nic, " has"));
      }
    }
    std::tie(flow.source, flow.source_nic) = source;
    std::tie(flow.target, flow.target_nic) = target;
    WEFT_ASSIGN_OR_RETURN(flow.way, ParseWay(words.subspan(5)));
    WEFT_RETURN_IF_ERROR(CheckHashes(flow.way));
    plan_.flows.push_back(std::move(flow));
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> ParseFlow(absl::string_view what, absl::string_view word) const {
    size_t flow = 0;
    if (absl::SimpleAtoi(word, &flow) && flow < plan_.flows.size()) return flow;
    return Bad(absl::StrCat("a ", what, " of flow \"", word, "\"; before it there are ",
                            plan_.flows.size(), ", counted from 0"));
  }

  absl::Status TakeRate(Words words) {
    double rate = 0;
    if (!absl::SimpleAtod(words[1], &rate) || !std::isfinite(rate) || rate <= 0) {
      return Bad(absl::StrCat("\"", words[1], "\" is no rate: bytes a second, above 0"));
    }
    for (absl::string_view word : words.subspan(2)) {
      WEFT_ASSIGN_OR_RETURN(const size_t flow, ParseFlow("rate", word));
      plan_.flows[flow].way.rate = rate;
    }
    return absl::OkStatus();
  }

  absl::Status TakeDetour(Words words) {
    WEFT_ASSIGN_OR_RETURN(const size_t flow, ParseFlow("detour", words[2]));
    WEFT_ASSIGN_OR_RETURN(PathWay way, ParseWay(words.subspan(3)));
    WEFT_RETURN_IF_ERROR(CheckHashes(way));
    plan_.detours[std::string(words[1])].insert_or_assign(static_cast<int>(flow), std::move(way));
    return absl::OkStatus();
  }

  absl::Status CheckHashes(const PathWay& way) const {
    for (const PathChoice& choice : way.choices) {
      if (plan_.hashes.count(choice.at) == 0) {
        return Bad(absl::StrCat("no line before says what ", choice.at, " hashes"));
      }
    }
    return absl::OkStatus();
  }

  bool begun_ = false;
  int64_t lines_ = 0;  // behind the line "lines"
  std::optional<int64_t> lines_stated_;
  ConnectionPlanText plan_;
  std::map<std::string, size_t> nics_;  // of each host
};

void AppendWay(std::string& text, const PathWay& way) {
  absl::StrAppendFormat(&text, " %.9g", way.seconds);
  for (const PathChoice& choice : way.choices) {
    absl::StrAppend(&text, " ", choice.at, ":", choice.index, "/", choice.count);
    if (!choice.to.empty()) absl::StrAppend(&text, ">", choice.to);
  }
  absl::StrAppend(&text, "\n");
}

}  // namespace

absl::StatusOr<ConnectionPlanText> ParseConnectionPlan(absl::string_view text,
                                                       absl::string_view origin) {
  Reader reader;
  TextLines lines(text, origin);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    absl::Status taken = reader.Take(words);
    if (!taken.ok()) return lines.Error(taken.message());
  }
  absl::StatusOr<ConnectionPlanText> plan = std::move(reader).Finish(absl::EndsWith(text, "\n"));
  if (!plan.ok()) return Annotate(plan.status(), origin);
  return plan;
}

std::string ConnectionPlanFileText(const ConnectionPlanText& plan) {
  std::string text = absl::StrCat("ranks ", plan.ranks, "\n");
  for (const ConnectionPlanHost& host : plan.hosts) {
    absl::StrAppend(&text, "host ", host.name);
    for (size_t nic = 0; nic < host.addresses.size(); ++nic) {
      absl::StrAppend(&text, " ", host.addresses[nic].ToString(), " ", host.leaves[nic]);
    }
    absl::StrAppend(&text, "\n");
  }
  for (const auto& [name, hash] : plan.hashes) {
    absl::StrAppend(&text, "hash ", name, " ", HashText(hash.options()), "\n");
  }
  for (const auto& [router, name] : plan.routers) {
    absl::StrAppend(&text, "router ", router, " ", name, "\n");
  }
  for (const ConnectionPlanFlow& flow : plan.flows) {
    absl::StrAppend(&text, "flow ", flow.rank, " ", flow.peer, " ", flow.source, ":",
                    flow.source_nic, " ", flow.target, ":", flow.target_nic);
    AppendWay(text, flow.way);
  }
  std::map<int64_t, std::string> rates;
  for (size_t i = 0; i < plan.flows.size(); ++i) {
    const auto rate = static_cast<int64_t>(plan.flows[i].way.rate);
    if (rate > 0) absl::StrAppend(&rates[rate], " ", i);
  }
  for (const auto& [rate, flows] : rates) absl::StrAppend(&text, "rate ", rate, flows, "\n");
  for (const auto& [over, ways] : plan.detours) {
    for (const auto& [flow, way] : ways) {
      absl::StrAppend(&text, "detour ", over, " ", flow);
      AppendWay(text, way);
    }
  }
  for (const auto& [leaves, ways] : plan.spares) {
    for (const PathWay& way : ways) {
      absl::StrAppend(&text, "spare ", leaves.first, " ", leaves.second);
      AppendWay(text, way);
    }
  }
  return absl::StrCat(kMagic, " 1\nfingerprint ", plan.fingerprint, "\nlines ",
                      std::count(text.begin(), text.end(), '\n'), "\n", text);
}

}  // namespace weft::topology
