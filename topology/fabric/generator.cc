#include "topology/fabric/generator.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/settings.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// What a generator is given, before it is a ClosSpec.
struct Draft {
  ClosSpec spec;
  int radix = 0;  // fat-tree
  double oversubscription = 0;
  double core_oversubscription = 0;
  // What was said of spines and cores: a number and a ratio exclude each other.
  bool has_spines = false, has_cores = false;
  bool has_spine_bandwidth = false, has_core_bandwidth = false;
  bool has_cables = false;
};

absl::Status SetInt(absl::string_view text, int least, int& field) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > kMaxNodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be a whole number from ", least, " to ", kMaxNodes));
  }
  field = static_cast<int>(value);
  return absl::OkStatus();
}

absl::Status SetRatio(absl::string_view text, double& field) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !(value > 0) || value > 1000) {
    return absl::InvalidArgumentError("must be a ratio above 0 and at most 1000, as 2 for 2:1");
  }
  field = value;
  return absl::OkStatus();
}

absl::Status SetBandwidth(absl::string_view text, Bandwidth& field) {
  WEFT_ASSIGN_OR_RETURN(field, ParseBandwidth(text));
  return absl::OkStatus();
}

absl::Status SetDuration(absl::string_view text, absl::Span<absl::Duration* const> fields) {
  absl::Duration value;
  if (!absl::ParseDuration(text, &value)) {
    return absl::InvalidArgumentError("must be a time, as 500ns or 1us");
  }
  for (absl::Duration* field : fields) *field = value;
  return absl::OkStatus();
}

absl::Status SetBytes(absl::string_view text, absl::Span<Bytes* const> fields) {
  WEFT_ASSIGN_OR_RETURN(Bytes value, ParseBytes(text));
  for (Bytes* field : fields) *field = value;
  return absl::OkStatus();
}

struct Row {
  absl::string_view name;
  absl::string_view sentence;
  absl::Status (*set)(Draft& draft, absl::string_view text);
};

constexpr Row kHosts = {"hosts", "hosts in all; what has none is not built (0: as many as fit)",
                        [](Draft& d, absl::string_view t) { return SetInt(t, 0, d.spec.hosts); }};
constexpr Row kNics = {"nics", "NICs of a host, all to its leaf",
                       [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.nics); }};
constexpr Row kRails = {"rails", "NICs of a host, each to a leaf of its own",
                        [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.nics); }};
constexpr Row kHostsPerLeaf = {
    "hosts_per_leaf", "hosts under a leaf",
    [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.hosts_per_group); }};
constexpr Row kHostsPerGroup = {
    "hosts_per_group", "hosts that share a set of leaves",
    [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.hosts_per_group); }};
constexpr Row kLeaves = {"leaves", "leaf switches",
                         [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.groups); }};
constexpr Row kLeavesPerPod = {
    "leaves_per_pod", "leaf switches of a pod",
    [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.groups); }};
constexpr Row kGroups = {"groups", "sets of leaves, of a pod where there are several",
                         [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.groups); }};
constexpr Row kPods = {"pods", "pods, joined by cores",
                       [](Draft& d, absl::string_view t) { return SetInt(t, 1, d.spec.pods); }};
constexpr auto kSetSpines = [](Draft& d, absl::string_view t) {
  d.has_spines = true;
  return SetInt(t, 0, d.spec.spines);
};
constexpr Row kSpines = {"spines", "spine switches, of each pod and plane", kSetSpines};
constexpr Row kSpinesPerPod = {"spines_per_pod", "spine switches of a pod", kSetSpines};
constexpr Row kCores = {"cores", "core switches, of each plane (0: two tiers)",
                        [](Draft& d, absl::string_view t) {
                          d.has_cores = true;
                          return SetInt(t, 0, d.spec.cores);
                        }};
constexpr Row kRadix = {"radix", "ports of every switch, even: radix^3 / 4 hosts",
                        [](Draft& d, absl::string_view t) { return SetInt(t, 2, d.radix); }};

// What every generator takes.
constexpr auto kCommon = std::to_array<Row>({
    {"bandwidth", "of hosts' cables, and of all others that do not say",
     [](Draft& d, absl::string_view t) { return SetBandwidth(t, d.spec.leaf.bandwidth); }},
    {"spine_bandwidth", "of cables from leaf to spine",
     [](Draft& d, absl::string_view t) {
       d.has_spine_bandwidth = true;
       return SetBandwidth(t, d.spec.spine.bandwidth);
     }},
    {"core_bandwidth", "of cables from spine to core",
     [](Draft& d, absl::string_view t) {
       d.has_core_bandwidth = true;
       return SetBandwidth(t, d.spec.core.bandwidth);
     }},
    {"spine_cables", "parallel cables from a leaf to a spine",
     [](Draft& d, absl::string_view t) {
       d.has_cables = true;
       return SetInt(t, 1, d.spec.spine.cables);
     }},
    {"core_cables", "parallel cables from a spine to a core",
     [](Draft& d, absl::string_view t) {
       d.has_cables = true;
       return SetInt(t, 1, d.spec.core.cables);
     }},
    {"oversubscription", "instead of spines: bandwidth of a leaf down over up; 1 is full bisection",
     [](Draft& d, absl::string_view t) { return SetRatio(t, d.oversubscription); }},
    {"core_oversubscription", "instead of cores: bandwidth of a spine down over up",
     [](Draft& d, absl::string_view t) { return SetRatio(t, d.core_oversubscription); }},
    {"delay", "of every cable, one way",
     [](Draft& d, absl::string_view t) {
       return SetDuration(t, {&d.spec.leaf.delay, &d.spec.spine.delay, &d.spec.core.delay});
     }},
    {"host_delay", "of hosts' cables",
     [](Draft& d, absl::string_view t) { return SetDuration(t, {&d.spec.leaf.delay}); }},
    {"spine_delay", "of cables from leaf to spine",
     [](Draft& d, absl::string_view t) { return SetDuration(t, {&d.spec.spine.delay}); }},
    {"core_delay", "of cables from spine to core",
     [](Draft& d, absl::string_view t) { return SetDuration(t, {&d.spec.core.delay}); }},
    {"latency", "of every switch",
     [](Draft& d, absl::string_view t) {
       return SetDuration(t, {&d.spec.leaf.latency, &d.spec.spine.latency, &d.spec.core.latency});
     }},
    {"buffer", "of the queue of every port (0: not stated)",
     [](Draft& d, absl::string_view t) {
       ClosSpec& s = d.spec;
       return SetBytes(t, {&s.leaf.buffer_up, &s.leaf.buffer_down, &s.spine.buffer_up,
                           &s.spine.buffer_down, &s.core.buffer_up, &s.core.buffer_down});
     }},
    {"switch_buffer", "packet memory of every switch (0: not stated)",
     [](Draft& d, absl::string_view t) {
       return SetBytes(t, {&d.spec.leaf.buffer, &d.spec.spine.buffer, &d.spec.core.buffer});
     }},
});

struct Generator {
  absl::string_view name;
  absl::string_view sentence;
  std::vector<std::pair<Row, int>> rows;  // with defaults
  void (*base)(ClosSpec& spec);
};

const std::vector<Generator>& Generators() {
  // Rows of every fabric of rails.
  static const auto& rails = *new std::vector<std::pair<Row, int>>{
      {kGroups, 4}, {kHostsPerGroup, 32}, {kRails, 8}, {kSpines, 32},
      {kPods, 1},   {kCores, 0},          {kHosts, 0}};
  static const auto& generators = *new std::vector<Generator>{
      {"leaf-spine",
       "Two tiers: every leaf has a cable to every spine.",
       {{kLeaves, 8}, {kHostsPerLeaf, 16}, {kNics, 1}, {kSpines, 16}, {kHosts, 0}},
       [](ClosSpec&) {}},
      {"three-tier",
       "Pods of leaves and spines under cores.",
       {{kPods, 4},
        {kLeavesPerPod, 8},
        {kHostsPerLeaf, 8},
        {kNics, 1},
        {kSpinesPerPod, 8},
        {kCores, 64},
        {kHosts, 0}},
       [](ClosSpec&) {}},
      {"fat-tree",
       "Three tiers of equal switches at full bisection (Al-Fares, SIGCOMM'08).",
       {{kRadix, 8}, {kHosts, 0}},
       [](ClosSpec&) {}},
      {"rail-optimised", "NIC r of every host of a group is under the group's leaf r.", rails,
       [](ClosSpec& spec) { spec.rail_leaves = true; }},
      {"rail-only",
       "As rail-optimised, but each rail has spines of its own: no path from rail to rail.", rails,
       [](ClosSpec& spec) {
         spec.rail_leaves = true;
         spec.planes = Planes::kByRail;
       }},
      {"dual-tor", "Rail-optimised; every NIC has two ports, to two leaves, under the same spines.",
       rails,
       [](ClosSpec& spec) {
         spec.rail_leaves = true;
         spec.ports = 2;
       }},
      {"dual-plane", "As dual-tor, but port p is in plane p, whose spines no other plane reaches.",
       rails,
       [](ClosSpec& spec) {
         spec.rail_leaves = true;
         spec.ports = 2;
         spec.planes = Planes::kByPort;
       }},
      {"megascale",
       "MegaScale (NSDI'24): hosts of 8 NICs at 200G, 400G ToR ports split in two, three tiers.",
       {{kHosts, 1536}},
       [](ClosSpec&) {}},
  };
  return generators;
}

absl::StatusOr<const Generator*> FindGenerator(absl::string_view type, absl::string_view where) {
  if (type == "rail-optimized") type = "rail-optimised";
  for (const Generator& generator : Generators()) {
    if (generator.name == type) return &generator;
  }
  std::string nearest = NearestName(type.substr(0, 64), GeneratorNames());
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": there is no generator \"", type.substr(0, 64), "\"; ",
      nearest.empty() ? absl::StrCat("there are ", absl::StrJoin(GeneratorNames(), ", "))
                      : absl::StrCat("nearest: ", nearest)));
}

absl::Status Apply(const Generator& generator, const GeneratorSetting& setting, Draft& draft) {
  const Row* found = nullptr;
  std::vector<std::string> names;
  for (const auto& [row, standard] : generator.rows) {
    if (row.name == setting.name) found = &row;
    names.emplace_back(row.name);
  }
  for (const Row& row : kCommon) {
    if (row.name == setting.name) found = &row;
    names.emplace_back(row.name);
  }
  if (found == nullptr) {
    std::string nearest = NearestName(absl::string_view(setting.name).substr(0, 64), names);
    return absl::InvalidArgumentError(
        absl::StrCat(setting.where, ": generator ", generator.name, " has no \"",
                     setting.name.substr(0, 64), "\"; ",
                     nearest.empty() ? absl::StrCat("it has ", absl::StrJoin(names, ", "))
                                     : absl::StrCat("nearest: ", nearest)));
  }
  absl::Status status = found->set(draft, setting.value);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(setting.where, ": ", setting.name, " = ",
                                                 setting.value.substr(0, 64), ": ",
                                                 status.message()));
}

// The number of switches that brings `down` up at a ratio, each with `each` of bandwidth.
absl::StatusOr<int> SwitchesFor(absl::string_view what, Bandwidth down, double ratio,
                                Bandwidth each) {
  double count = down / each / ratio;
  if (count > kMaxNodes || count < 0.5 || std::abs(count - std::round(count)) > 1e-6 * count) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s = %g needs %.6g switches above; choose a ratio that gives a whole number", what, ratio,
        count));
  }
  return static_cast<int>(std::lround(count));
}

absl::Status ApplyRatios(Draft& draft) {
  ClosSpec& spec = draft.spec;
  if (draft.oversubscription > 0) {
    if (draft.has_spines) {
      return absl::InvalidArgumentError("give either spines or oversubscription, not both");
    }
    Bandwidth down = spec.leaf.bandwidth * (1.0 * spec.hosts_per_group * spec.leaf.cables *
                                            (spec.rail_leaves ? 1 : spec.nics));
    WEFT_ASSIGN_OR_RETURN(spec.spines, SwitchesFor("oversubscription", down, draft.oversubscription,
                                                   spec.spine.bandwidth * spec.spine.cables));
  }
  if (draft.core_oversubscription > 0) {
    if (draft.has_cores) {
      return absl::InvalidArgumentError("give either cores or core_oversubscription, not both");
    }
    bool has_rail_leaves = spec.rail_leaves && spec.planes != Planes::kByRail;
    double leaves = 1.0 * spec.groups * (has_rail_leaves ? spec.nics : 1) *
                    (spec.planes == Planes::kByPort ? 1 : spec.ports);
    Bandwidth down = spec.spine.bandwidth * (leaves * spec.spine.cables * spec.spines);
    WEFT_ASSIGN_OR_RETURN(spec.cores,
                          SwitchesFor("core_oversubscription", down, draft.core_oversubscription,
                                      spec.core.bandwidth * spec.core.cables));
    if (spec.cores < spec.spines) {
      return absl::InvalidArgumentError(absl::StrCat(
          "core_oversubscription asks for ", spec.cores, " cores, fewer than the ", spec.spines,
          " spines of a pod, each of which needs a cable up; give cores"));
    }
  }
  return absl::OkStatus();
}

// What follows from the settings together.
absl::Status Resolve(absl::string_view generator, Draft& draft) {
  ClosSpec& spec = draft.spec;
  bool is_fixed = generator == "megascale" || generator == "fat-tree";
  if (is_fixed &&
      (draft.has_cables || draft.oversubscription > 0 || draft.core_oversubscription > 0)) {
    return absl::InvalidArgumentError(
        "its switches and cables are fixed; for other ratios take three-tier");
  }
  if (generator == "megascale") {
    TierSpec leaf = spec.leaf;
    WEFT_ASSIGN_OR_RETURN(ClosSpec megascale, MegaScaleClos(spec.hosts));
    if (!draft.has_spine_bandwidth) spec.spine.bandwidth = megascale.spine.bandwidth;
    if (!draft.has_core_bandwidth) spec.core.bandwidth = megascale.core.bandwidth;
    spec.core.cables = megascale.core.cables;
    megascale.leaf = leaf;
    megascale.spine = spec.spine;
    megascale.core = spec.core;
    spec = megascale;
    return absl::OkStatus();
  }
  if (generator == "fat-tree") {
    if (draft.radix % 2 != 0 || draft.radix > 128) {
      return absl::InvalidArgumentError(
          absl::StrCat("radix = ", draft.radix, ": must be even and at most 128"));
    }
    spec.pods = draft.radix;
    spec.groups = spec.hosts_per_group = spec.spines = draft.radix / 2;
    spec.cores = spec.spines * spec.spines;
  }
  if (!draft.has_spine_bandwidth) spec.spine.bandwidth = spec.leaf.bandwidth;
  if (!draft.has_core_bandwidth) spec.core.bandwidth = spec.spine.bandwidth;
  return ApplyRatios(draft);
}

}  // namespace

absl::StatusOr<ClosSpec> GeneratorSpec(absl::string_view type,
                                       absl::Span<const GeneratorSetting> settings,
                                       absl::string_view where) {
  WEFT_ASSIGN_OR_RETURN(const Generator* generator, FindGenerator(type, where));
  Draft draft;
  generator->base(draft.spec);
  for (const auto& [row, standard] : generator->rows) {
    WEFT_RETURN_IF_ERROR(row.set(draft, absl::StrCat(standard)));
  }
  if (generator->name == "megascale") {
    draft.spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(200);
  }
  draft.has_spines = draft.has_cores = false;
  for (const GeneratorSetting& setting : settings) {
    WEFT_RETURN_IF_ERROR(Apply(*generator, setting, draft));
  }
  absl::Status status = Resolve(generator->name, draft);
  if (!status.ok()) return Annotate(status, absl::StrCat(where, ": generator ", generator->name));
  return draft.spec;
}

bool IsGenerator(absl::string_view text) {
  absl::string_view name = text.substr(0, text.find(':'));
  for (const Generator& generator : Generators()) {
    if (generator.name == name) return true;
  }
  return name == "rail-optimized";
}

absl::StatusOr<Fabric> GenerateFabric(absl::string_view text) {
  std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  std::string where = absl::StrCat("\"", text.substr(0, 80), "\"");
  std::vector<GeneratorSetting> settings;
  for (absl::string_view pair : absl::StrSplit(halves.second, ',', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> setting =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    settings.push_back({std::string(absl::StripAsciiWhitespace(setting.first)),
                        std::string(absl::StripAsciiWhitespace(setting.second)), where});
  }
  WEFT_ASSIGN_OR_RETURN(ClosSpec spec, GeneratorSpec(halves.first, settings, where));
  absl::StatusOr<Fabric> fabric = BuildClos(spec);
  if (!fabric.ok()) return Annotate(fabric.status(), where);
  return fabric;
}

std::vector<std::string> GeneratorNames() {
  std::vector<std::string> names;
  for (const Generator& generator : Generators()) names.emplace_back(generator.name);
  return names;
}

std::string GeneratorHelp() {
  std::string text;
  auto line = [&](absl::string_view name, absl::string_view standard, absl::string_view sentence) {
    absl::StrAppendFormat(&text, "    %-22s %-6s %s\n", name, standard, sentence);
  };
  for (const Generator& generator : Generators()) {
    absl::StrAppend(&text, "  ", generator.name, "\n    ", generator.sentence, "\n");
    for (const auto& [row, standard] : generator.rows) {
      line(row.name, absl::StrCat(standard), row.sentence);
    }
  }
  absl::StrAppend(&text, "  every generator\n");
  for (const Row& row : kCommon) {
    absl::string_view standard = row.name == "bandwidth" ? "400Gbps"
                                 : row.name == "delay"   ? "500ns"
                                                         : "";
    line(row.name, standard, row.sentence);
  }
  return text;
}

}  // namespace weft::topology
