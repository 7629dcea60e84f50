#include "tools/bw/link/load.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/settings.h"
#include "base/status.h"

namespace weft::link_bw {
namespace {

constexpr std::array kTests{Test::kBandwidth, Test::kLatency, Test::kRate, Test::kSteps};
constexpr std::array kPatterns{Pattern::kOneWay, Pattern::kBothWays, Pattern::kManyToOne,
                               Pattern::kOneToMany, Pattern::kAllPairs};
constexpr std::array kCollectives{CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                  CollectiveKind::kReduceScatter, CollectiveKind::kBroadcast,
                                  CollectiveKind::kSendReceive};
constexpr std::array kTransports{net::TransportKind::kShm, net::TransportKind::kTcp,
                                 net::TransportKind::kUcx, net::TransportKind::kMultipath,
                                 net::TransportKind::kVerbs};

template <typename List>
std::vector<std::string> NamesOf(const List& list) {
  std::vector<std::string> names;
  names.reserve(list.size());
  for (auto one : list) names.emplace_back(ToString(one));
  return names;
}

template <typename List>
absl::StatusOr<typename List::value_type> Choose(const char* option, const std::string& name,
                                                 const List& list) {
  for (auto one : list) {
    if (name == ToString(one)) return one;
  }
  const std::vector<std::string> names = NamesOf(list);
  const std::string nearest = NearestName(name, names);
  return absl::InvalidArgumentError(
      absl::StrCat(option, " '", name, "' is none of ", absl::StrJoin(names, ", "),
                   nearest.empty() ? "" : absl::StrCat("; nearest: ", nearest)));
}

// As the command line has it: other ranks may say anything.
bool IsInBounds(const Load& load) {
  return std::all_of(load.sizes.begin(), load.sizes.end(),
                     [](Bytes size) { return size >= Bytes(0) && size <= GiB(1); }) &&
         load.root >= 0 && load.iterations >= 0 && load.duration > absl::ZeroDuration() &&
         load.duration <= kDurationMost && load.depth >= 1 && load.depth <= 4096 &&
         load.post_list >= 1 && load.post_list <= 4096 && load.percentile >= 0 &&
         load.percentile <= 100 && load.channels >= 1 && load.channels <= 64 &&
         load.channel_bytes >= KiB(8) && load.channel_bytes <= MiB(64);
}

}  // namespace

const char* ToString(Test test) {
  constexpr std::array kNames{"bw", "lat", "rate", "steps"};
  return kNames[static_cast<size_t>(test)];
}

const char* ToString(Pattern pattern) {
  constexpr std::array kNames{"one-way", "both-ways", "many-to-one", "one-to-many", "all-pairs"};
  return kNames[static_cast<size_t>(pattern)];
}

absl::StatusOr<Test> ParseTest(const char* option, const std::string& name) {
  return Choose(option, name, kTests);
}

absl::StatusOr<Pattern> ParsePattern(const char* option, const std::string& name) {
  return Choose(option, name, kPatterns);
}

absl::StatusOr<CollectiveKind> ParseCollective(const char* option, const std::string& name) {
  return Choose(option, name, kCollectives);
}

absl::StatusOr<net::TransportKind> ParseTransport(const char* option, const std::string& name) {
  return Choose(option, name, kTransports);
}

nlohmann::json Load::ToJson() const {
  std::vector<int64_t> counts;
  counts.reserve(sizes.size());
  for (Bytes size : sizes) counts.push_back(size.count());
  return {{"transport", net::ToString(transport)},
          {"test", ToString(test)},
          {"pattern", ToString(pattern)},
          {"in_turn", in_turn},
          {"root", root},
          {"sizes", counts},
          {"iterations", iterations},
          {"seconds", absl::ToDoubleSeconds(duration)},
          {"depth", depth},
          {"post_list", post_list},
          {"one_buffer", one_buffer},
          {"check", check},
          {"events", events},
          {"percentile", percentile},
          {"collective", ToString(collective)},
          {"channels", channels},
          {"buffsize", channel_bytes.count()}};
}

absl::StatusOr<Load> Load::FromJson(const nlohmann::json& json) {
  Load load;
  try {
    WEFT_ASSIGN_OR_RETURN(load.transport, ParseTransport("transport", json.at("transport")));
    WEFT_ASSIGN_OR_RETURN(load.test, ParseTest("test", json.at("test")));
    WEFT_ASSIGN_OR_RETURN(load.pattern, ParsePattern("pattern", json.at("pattern")));
    WEFT_ASSIGN_OR_RETURN(load.collective, ParseCollective("collective", json.at("collective")));
    for (const nlohmann::json& size : json.at("sizes"))
      load.sizes.emplace_back(size.get<int64_t>());
    json.at("in_turn").get_to(load.in_turn);
    json.at("root").get_to(load.root);
    json.at("iterations").get_to(load.iterations);
    load.duration = absl::Seconds(json.at("seconds").get<double>());
    json.at("depth").get_to(load.depth);
    json.at("post_list").get_to(load.post_list);
    json.at("one_buffer").get_to(load.one_buffer);
    json.at("check").get_to(load.check);
    json.at("events").get_to(load.events);
    json.at("percentile").get_to(load.percentile);
    json.at("channels").get_to(load.channels);
    load.channel_bytes = Bytes(json.at("buffsize").get<int64_t>());
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("no test of weft-bw link: ", error.what()));
  }
  if (IsInBounds(load)) return load;
  return absl::InvalidArgumentError(
      absl::StrCat("no test of weft-bw link: out of bounds: ", JsonText(json)));
}

}  // namespace weft::link_bw
