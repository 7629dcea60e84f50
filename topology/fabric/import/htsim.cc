// htsim's topology files, read as its fat_tree_topology.cpp reads them (Broadcom/csg-htsim 841d9e7,
// ultraethernet/uet-htsim 40ccb05): key and value a line, keys in any case, `Tier N` begins a
// tier. Nodes / Podsize pods; ToRs of a pod = Podsize / Radix_Down(0); aggregation switches and
// cores follow from speeds and oversubscription, and must agree with the radices. ToR t of a pod
// has Bundle(1) cables to each aggregation switch of the pod; aggregation switch a of a pod has
// Bundle(2) cables to the cores that are a modulo the switches of a pod.
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/fabric/clos.h"
#include "topology/fabric/import/import.h"

namespace weft::topology {
namespace {

// Beyond these a number is a mistake; below, products of three of them fit 64 bits.
constexpr int64_t kMost = 1'000'000;
constexpr int64_t kMostBytesOrNanoseconds = 1'000'000'000;

struct Field {
  int64_t value = 0;
  int line = 0;  // 0: not in the file
};

struct Tier {
  Field speed, radix_down, radix_up, queue_down, queue_up, oversubscribed, bundle, switch_latency,
      latency;
  int line = 0;
};

struct TierKey {
  absl::string_view name;
  Field Tier::*field;
  int64_t least;
  int64_t most = kMost;
};
constexpr auto kTierKeys = std::to_array<TierKey>({
    {"downlink_speed_gbps", &Tier::speed, 1},
    {"radix_down", &Tier::radix_down, 1},
    {"radix_up", &Tier::radix_up, 1},
    {"queue_down", &Tier::queue_down, 1, kMostBytesOrNanoseconds},
    {"queue_up", &Tier::queue_up, 1, kMostBytesOrNanoseconds},
    {"oversubscribed", &Tier::oversubscribed, 1},
    {"bundle", &Tier::bundle, 1},
    {"switch_latency_ns", &Tier::switch_latency, 0, kMostBytesOrNanoseconds},
    {"downlink_latency_ns", &Tier::latency, 0, kMostBytesOrNanoseconds},
});

class HtsimFile {
 public:
  HtsimFile(absl::string_view text, const std::string& name) : lines_(text, name) {}

  absl::StatusOr<ClosSpec> Read(const ImportDefaults& defaults) {
    absl::string_view line;
    while (lines_.Next(line)) {
      std::vector<absl::string_view> words = Words(line);
      if (!words.empty()) WEFT_RETURN_IF_ERROR(ReadLine(words));
    }
    WEFT_RETURN_IF_ERROR(CheckPresent());
    return ToSpec(defaults);
  }

 private:
  absl::Status ReadLine(const std::vector<absl::string_view>& words) {
    std::string key = absl::AsciiStrToLower(words[0]);
    if (words.size() != 2) {
      return lines_.Error("\"", Excerpt(words[0]), "\" needs one value, and has ",
                          words.size() - 1);
    }
    if (key == "tier") {
      Field number;
      WEFT_RETURN_IF_ERROR(ReadValue(words, 0, 2, number));
      tier_ = &tiers_[static_cast<size_t>(number.value)];
      tier_->line = lines_.number();
      return absl::OkStatus();
    }
    if (key == "nodes") return ReadValue(words, 1, kMaxNodes, nodes_);
    if (key == "tiers") return ReadValue(words, 2, 3, tier_count_);
    if (key == "podsize") return ReadValue(words, 1, kMaxNodes, pod_size_);
    std::vector<std::string> names = {"nodes", "tiers", "podsize", "tier"};
    for (const TierKey& known : kTierKeys) {
      names.emplace_back(known.name);
      if (known.name != key) continue;
      if (tier_ == nullptr) return lines_.Error(key, " stands before the first \"Tier N\"");
      return ReadValue(words, known.least, known.most, tier_->*known.field);
    }
    std::string nearest = NearestName(absl::string_view(key).substr(0, 64), names);
    return lines_.Error("htsim has no key \"", Excerpt(words[0]), "\"; ",
                        nearest.empty() ? absl::StrCat("it has ", absl::StrJoin(names, ", "))
                                        : absl::StrCat("nearest: ", nearest));
  }

  absl::Status ReadValue(const std::vector<absl::string_view>& words, int64_t least, int64_t most,
                         Field& field) {
    if (field.line > 0) {
      return lines_.Error(words[0], " is there already, in line ", field.line);
    }
    if (!absl::SimpleAtoi(words[1], &field.value) || field.value < least || field.value > most) {
      return lines_.Error(words[0], " = ", Excerpt(words[1]), ": must be a whole number from ",
                          least, " to ", most);
    }
    field.line = lines_.number();
    return absl::OkStatus();
  }

  template <typename... What>
  absl::Status ErrorAt(int line, const What&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(lines_.file(), ":", line, ": ", what...));
  }

  absl::Status CheckPresent() {
    for (const auto& [field, name] : {std::pair{&nodes_, "Nodes"}, std::pair{&tier_count_, "Tiers"},
                                      std::pair{&pod_size_, "Podsize"}}) {
      if (field->line == 0) {
        return absl::InvalidArgumentError(absl::StrCat(lines_.file(), ": ", name, " is missing"));
      }
    }
    for (size_t i = 0; i < static_cast<size_t>(tier_count_.value); ++i) {
      Tier& tier = tiers_[i];
      bool is_top = i + 1 == static_cast<size_t>(tier_count_.value);
      if (tier.line == 0) {
        return absl::InvalidArgumentError(absl::StrCat(lines_.file(), ": Tier ", i, " is missing"));
      }
      for (const TierKey& key : kTierKeys) {
        bool is_needed = key.name == "downlink_speed_gbps" || key.name == "downlink_latency_ns" ||
                         key.name == "radix_down" || (key.name == "radix_up" && !is_top);
        if (is_needed && (tier.*key.field).line == 0) {
          return ErrorAt(tier.line, "Tier ", i, " has no ", key.name);
        }
        bool is_of_top = key.name != "radix_up" && key.name != "queue_up";
        if (is_top && !is_of_top && (tier.*key.field).line > 0) {
          return ErrorAt((tier.*key.field).line, key.name, ": nothing is above Tier ", i);
        }
      }
      if (tier.oversubscribed.line == 0) tier.oversubscribed.value = 1;
      if (tier.bundle.line == 0) tier.bundle.value = 1;
    }
    return absl::OkStatus();
  }

  // a / b where it is whole; an error at `line` otherwise.
  absl::StatusOr<int64_t> Divide(int64_t a, int64_t b, int line, absl::string_view what) const {
    if (b > 0 && a % b == 0 && a >= b) return a / b;
    return ErrorAt(line, what, ": ", a, " / ", b, " is no whole number above 0");
  }

  absl::StatusOr<ClosSpec> ToSpec(const ImportDefaults& defaults) {
    const auto& [tor, agg, core] = tiers_;
    bool has_cores = tier_count_.value == 3;
    ClosSpec spec;
    WEFT_ASSIGN_OR_RETURN(int64_t pods, Divide(nodes_.value, pod_size_.value, pod_size_.line,
                                               "pods = Nodes / Podsize"));
    WEFT_ASSIGN_OR_RETURN(int64_t tors,
                          Divide(pod_size_.value, tor.radix_down.value, tor.radix_down.line,
                                 "ToRs of a pod = Podsize / Radix_Down of Tier 0"));
    if (!has_cores && pods > 1) {
      return ErrorAt(pod_size_.line, "with two tiers there is one pod: Podsize must be ",
                     nodes_.value);
    }
    if (tor.bundle.value != 1) {
      return ErrorAt(tor.bundle.line, "Bundle of Tier 0 must be 1: a host has one cable");
    }
    WEFT_ASSIGN_OR_RETURN(
        int64_t uplinks,
        Divide(nodes_.value * tor.speed.value, agg.speed.value * tor.oversubscribed.value, tor.line,
               "uplinks of all ToRs = Nodes * speed / (speed above * Oversubscribed)"));
    if (tor.radix_down.value / tor.radix_up.value != tor.oversubscribed.value) {
      return ErrorAt(tor.radix_up.line, "Radix_Down / Radix_Up of Tier 0 is ", tor.radix_down.value,
                     " / ", tor.radix_up.value, ", and Oversubscribed says ",
                     tor.oversubscribed.value);
    }
    WEFT_ASSIGN_OR_RETURN(int64_t aggs,
                          Divide(uplinks, pods * agg.radix_down.value, agg.radix_down.line,
                                 "switches of Tier 1 in a pod = uplinks of ToRs / "
                                 "(pods * Radix_Down)"));
    if (aggs * agg.bundle.value != tor.radix_up.value) {
      return ErrorAt(tor.radix_up.line, "Radix_Up of Tier 0 is ", tor.radix_up.value, ", but ",
                     aggs, " switches of Tier 1 in a pod times Bundle ", agg.bundle.value, " are ",
                     aggs * agg.bundle.value);
    }
    spec.pods = static_cast<int>(pods);
    spec.groups = static_cast<int>(tors);
    spec.hosts_per_group = static_cast<int>(tor.radix_down.value);
    spec.spines = static_cast<int>(aggs);
    if (has_cores) WEFT_RETURN_IF_ERROR(SetCores(uplinks, spec));
    SetTier(tor, nullptr, defaults, spec.leaf);
    SetTier(agg, &tor, defaults, spec.spine);
    if (has_cores) SetTier(core, &agg, defaults, spec.core);
    return spec;
  }

  absl::Status SetCores(int64_t tor_uplinks, ClosSpec& spec) const {
    const Tier& agg = tiers_[1];
    const Tier& core = tiers_[2];
    WEFT_ASSIGN_OR_RETURN(
        int64_t uplinks,
        Divide(tor_uplinks * agg.speed.value, core.speed.value * agg.oversubscribed.value, agg.line,
               "uplinks of Tier 1 = its downlinks * speed / (speed above * Oversubscribed)"));
    WEFT_ASSIGN_OR_RETURN(int64_t cores,
                          Divide(uplinks, core.radix_down.value, core.radix_down.line,
                                 "cores = uplinks of Tier 1 / Radix_Down"));
    if (cores % spec.spines != 0) {
      return ErrorAt(core.radix_down.line, "this makes ", cores,
                     " cores, which must be a multiple of the ", spec.spines,
                     " switches of Tier 1 in a pod");
    }
    if (cores * core.bundle.value / spec.spines != agg.radix_up.value) {
      return ErrorAt(agg.radix_up.line, "Radix_Up of Tier 1 is ", agg.radix_up.value, ", but ",
                     cores, " cores times Bundle ", core.bundle.value, " over ", spec.spines,
                     " switches of a pod are ", cores * core.bundle.value / spec.spines);
    }
    if (cores > kMaxNodes) {
      return ErrorAt(core.line, "this makes ", cores, " cores; at most ", kMaxNodes);
    }
    spec.cores = static_cast<int>(cores);
    return absl::OkStatus();
  }

  static void SetTier(const Tier& tier, const Tier* below, const ImportDefaults& defaults,
                      TierSpec& spec) {
    spec.bandwidth = Bandwidth::GigabitsPerSecond(static_cast<double>(tier.speed.value));
    spec.delay = absl::Nanoseconds(tier.latency.value);
    spec.latency = absl::Nanoseconds(tier.switch_latency.value);
    spec.cables = static_cast<int>(tier.bundle.value);
    spec.buffer_up = spec.buffer_down = defaults.buffer;
    if (tier.queue_down.line > 0) spec.buffer_down = Bytes(tier.queue_down.value);
    if (below != nullptr && below->queue_up.line > 0) {
      spec.buffer_up = Bytes(below->queue_up.value);
    }
  }

  TextLines lines_;
  Field nodes_, tier_count_, pod_size_;
  std::array<Tier, 3> tiers_;
  Tier* tier_ = nullptr;  // that the lines are about
};

}  // namespace

absl::StatusOr<Fabric> ImportHtsim(absl::string_view text, const std::string& name,
                                   const ImportDefaults& defaults) {
  WEFT_ASSIGN_OR_RETURN(ClosSpec spec, HtsimFile(text, name).Read(defaults));
  absl::StatusOr<Fabric> fabric = BuildClos(spec);
  if (!fabric.ok()) return Annotate(fabric.status(), name);
  return fabric;
}

}  // namespace weft::topology
