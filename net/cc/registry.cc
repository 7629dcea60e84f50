#include "net/cc/registry.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"
#include "base/status.h"
#include "net/cc/dcqcn.h"
#include "net/cc/fixed_window.h"
#include "net/cc/hpcc.h"
#include "net/cc/hybrid.h"
#include "net/cc/nscc.h"
#include "net/cc/swift.h"

namespace weft::net {
namespace {

constexpr std::array kAll = {ControllerKind::kFixed,  ControllerKind::kDcqcn,
                             ControllerKind::kSwift,  ControllerKind::kMswift,
                             ControllerKind::kHybrid, ControllerKind::kNscc,
                             ControllerKind::kCredit, ControllerKind::kHpcc};

constexpr Bytes kControllerFileMost = KiB(64);  // of one line

template <typename Parameters>
struct Row {
  const char* name;
  double Parameters::*field;
  double min, max;
  const char* meaning;
};

constexpr std::array<Row<FixedWindowParameters>, 1> kFixedRows = {{
    {"window", &FixedWindowParameters::window, 0.01, 1000,
     "window, products of bandwidth and base round trip"},
}};

constexpr std::array<Row<DcqcnParameters>, 10> kDcqcnRows = {{
    {"g", &DcqcnParameters::g, 1e-4, 1, "weight of the newest in alpha"},
    {"cnp_us", &DcqcnParameters::cnp_us, 1, 1e4, "between notifications, us"},
    {"alpha_us", &DcqcnParameters::alpha_us, 1, 1e4, "between alpha's updates, us"},
    {"increase_us", &DcqcnParameters::increase_us, 1, 1e4, "timer of increases, us"},
    {"increase_bytes", &DcqcnParameters::increase_bytes, 1e4, 1e10, "byte counter, bytes"},
    {"fast_steps", &DcqcnParameters::fast_steps, 1, 100, "increases of fast recovery"},
    {"additive", &DcqcnParameters::additive, 1e-6, 1, "R_AI, shares of the line rate"},
    {"hyper", &DcqcnParameters::hyper, 1e-6, 1, "R_HAI, shares of the line rate"},
    {"rate_min", &DcqcnParameters::rate_min, 1e-6, 1, "lowest rate, shares of the line rate"},
    {"window", &DcqcnParameters::window, 0, 1000,
     "window, products of rate and round trip; 0: none"},
}};

template <typename Parameters>
constexpr std::array<Row<Parameters>, 12> SwiftRows() {
  return {{
      {"ai", &Parameters::ai, 1e-3, 1000, "growth, packets a round trip"},
      {"beta", &Parameters::beta, 0.01, 1, "cut by the excess over the target"},
      {"max_mdf", &Parameters::max_mdf, 0.01, 0.99, "largest cut"},
      {"hop", &Parameters::hop, 0, 10, "target's part of a hop, base round trips"},
      {"fs_range", &Parameters::fs_range, 0, 100, "most that flow scaling adds, base round trips"},
      {"fs_min", &Parameters::fs_min, 1e-3, 10, "window at which it adds most, packets"},
      {"fs_max", &Parameters::fs_max, 10.5, 1e5, "window at which it adds nothing, packets"},
      {"endpoint_us", &Parameters::endpoint_us, 1, 1e6, "target of the endpoint's delay, us"},
      {"window_min", &Parameters::window_min, 1e-4, 1, "smallest window, packets"},
      {"window_max", &Parameters::window_max, 0.1, 100, "largest window, products"},
      {"window_start", &Parameters::window_start, 1e-4, 100, "first window, products"},
      {"samples", &Parameters::samples, 0, 63, "delays of which the median counts; 0: the newest"},
  }};
}
constexpr auto kSwiftRows = SwiftRows<SwiftParameters>();
constexpr std::array<Row<HybridParameters>, 1> kHybridRows = {{
    {"g", &HybridParameters::g, 1e-4, 1, "weight of the newest round trip in alpha"},
}};

constexpr std::array<Row<NsccParameters>, 8> kNsccRows = {{
    {"target", &NsccParameters::target, 0, 100,
     "queueing delay, base round trips; 0: 1, with trimming 0.75"},
    {"window_max", &NsccParameters::window_max, 0.1, 100, "largest window, products"},
    {"proportional", &NsccParameters::proportional, 0, 1000, "growth by the room"},
    {"fair", &NsccParameters::fair, 0, 1000, "growth while the queue drains"},
    {"additive", &NsccParameters::additive, 0, 100, "growth each round trip"},
    {"gamma", &NsccParameters::gamma, 0, 1, "cut by the excess over the target"},
    {"average", &NsccParameters::average, 1e-4, 1, "weight of the newest delay"},
    {"adapt_gate", &NsccParameters::adapt_gate, 0, 1, "quick adapt below this share delivered"},
}};

constexpr std::array<Row<HpccParameters>, 3> kHpccRows = {{
    {"eta", &HpccParameters::eta, 0.1, 1, "utilisation that is aimed at"},
    {"max_stage", &HpccParameters::max_stage, 0, 100, "round trips of growth in a row"},
    {"flows", &HpccParameters::flows, 1, 1e6, "N of the additive increase"},
}};

// MSwift is Swift with samples. Its paper says "a bounded window of recent samples" and no more.
constexpr double kMswiftSamples = 31;

struct AllParameters {
  explicit AllParameters(ControllerKind kind) {
    if (kind == ControllerKind::kMswift) swift.samples = kMswiftSamples;
  }
  FixedWindowParameters fixed;
  DcqcnParameters dcqcn;
  SwiftParameters swift;
  HybridParameters hybrid;
  NsccParameters nscc;
  HpccParameters hpcc;

  template <typename Visit>
  void ForEach(ControllerKind kind, Visit visit) {
    auto rows = [&](const auto& table, auto& parameters) {
      for (const auto& row : table) {
        visit(row.name, parameters.*row.field, row.min, row.max, row.meaning);
      }
    };
    switch (kind) {
      case ControllerKind::kFixed:
      case ControllerKind::kCredit:
        return rows(kFixedRows, fixed);
      case ControllerKind::kDcqcn:
        return rows(kDcqcnRows, dcqcn);
      case ControllerKind::kSwift:
      case ControllerKind::kMswift:
        return rows(kSwiftRows, swift);
      case ControllerKind::kHybrid:
        rows(kSwiftRows, static_cast<SwiftParameters&>(hybrid));
        return rows(kHybridRows, hybrid);
      case ControllerKind::kNscc:
        return rows(kNsccRows, nscc);
      case ControllerKind::kHpcc:
        return rows(kHpccRows, hpcc);
    }
  }
};

// NotFound: the controller has no such parameter.
absl::Status Set(AllParameters& all, ControllerKind kind, absl::string_view name, double value) {
  absl::Status status = absl::NotFoundError("");
  std::vector<std::string> names;
  all.ForEach(kind, [&](const char* row, double& field, double min, double max, const char*) {
    names.emplace_back(row);
    if (name != row) return;
    field = value;
    status = absl::OkStatus();
    if (value >= min && value <= max) return;
    status = absl::InvalidArgumentError(
        absl::StrFormat("%s: %s is %g; it must be %g to %g", ToString(kind), row, value, min, max));
  });
  if (!absl::IsNotFound(status)) return status;
  return absl::InvalidArgumentError(absl::StrCat(ToString(kind), " has no parameter '", name,
                                                 "'; it has ", absl::StrJoin(names, ", ")));
}

AllParameters WithParameters(const ControllerSpec& spec) {
  AllParameters all(spec.kind);
  for (const auto& [name, value] : spec.parameters) {
    absl::Status status = Set(all, spec.kind, name, value);
    WEFT_CHECK(status.ok(), status);
  }
  return all;
}

}  // namespace

absl::string_view ToString(ControllerKind kind) {
  switch (kind) {
    case ControllerKind::kFixed:
      return "fixed";
    case ControllerKind::kDcqcn:
      return "dcqcn";
    case ControllerKind::kSwift:
      return "swift";
    case ControllerKind::kMswift:
      return "mswift";
    case ControllerKind::kHybrid:
      return "hybrid";
    case ControllerKind::kNscc:
      return "nscc";
    case ControllerKind::kCredit:
      return "credit";
    case ControllerKind::kHpcc:
      return "hpcc";
  }
  return "?";
}

absl::Span<const ControllerKind> AllControllers() { return kAll; }

std::vector<ParameterInfo> ParametersOf(ControllerKind kind) {
  std::vector<ParameterInfo> list;
  AllParameters all(kind);
  all.ForEach(kind, [&](const char* name, double value, double min, double max, const char* text) {
    list.push_back({name, value, min, max, text});
  });
  return list;
}

absl::StatusOr<ControllerSpec> ParseController(absl::string_view text) {
  std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  ControllerSpec spec;
  const auto* kind = std::find_if(kAll.begin(), kAll.end(),
                                  [&](ControllerKind one) { return ToString(one) == parts.first; });
  if (kind == kAll.end()) {
    std::string known = absl::StrJoin(kAll, ", ", [](std::string* out, ControllerKind one) {
      absl::StrAppend(out, ToString(one));
    });
    return absl::InvalidArgumentError(
        absl::StrCat("no controller '", parts.first, "'; there are ", known));
  }
  spec.kind = *kind;
  AllParameters all(spec.kind);
  for (absl::string_view part : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    double value = 0;
    if (!absl::SimpleAtod(entry.second, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is no parameter of a controller, as in beta=0.8"));
    }
    WEFT_RETURN_IF_ERROR(Set(all, spec.kind, entry.first, value));
    spec.parameters.emplace_back(entry.first, value);
  }
  return spec;
}

absl::StatusOr<ControllerSpec> ReadController(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "@")) return ParseController(text);
  const std::string path(text);
  absl::StatusOr<std::string> content = ReadFile(path, kControllerFileMost);
  if (!content.ok() || content->empty()) {
    const std::string found =
        content.ok() ? "it is empty" : std::string(content.status().message());
    return absl::NotFoundError(absl::StrCat("no controller in the file '", path, "' (", found,
                                            "); weft-cc tune --out writes one"));
  }
  absl::string_view line = absl::string_view(*content).substr(0, content->find('\n'));
  absl::StatusOr<ControllerSpec> spec = ParseController(absl::StripAsciiWhitespace(line));
  if (spec.ok()) return spec;
  return Annotate(spec.status(), absl::StrCat(path, ":1"));
}

std::string ToString(const ControllerSpec& spec) {
  if (spec.parameters.empty()) return std::string(ToString(spec.kind));
  return absl::StrCat(ToString(spec.kind), ":",
                      absl::StrJoin(spec.parameters, ",", absl::PairFormatter("=")));
}

DcqcnParameters DcqcnOf(const ControllerSpec& spec) {
  WEFT_CHECK(spec.kind == ControllerKind::kDcqcn, ToString(spec));
  return WithParameters(spec).dcqcn;
}

std::unique_ptr<Controller> MakeController(const ControllerSpec& spec, const PathFacts& facts) {
  AllParameters all = WithParameters(spec);
  switch (spec.kind) {
    case ControllerKind::kFixed:
    case ControllerKind::kCredit:
      return std::make_unique<FixedWindow>(facts, all.fixed);
    case ControllerKind::kDcqcn:
      return std::make_unique<Dcqcn>(facts, all.dcqcn);
    case ControllerKind::kSwift:
    case ControllerKind::kMswift:
      return std::make_unique<Swift>(facts, all.swift);
    case ControllerKind::kHybrid:
      return std::make_unique<Hybrid>(facts, all.hybrid);
    case ControllerKind::kNscc:
      return std::make_unique<Nscc>(facts, all.nscc);
    case ControllerKind::kHpcc:
      return std::make_unique<Hpcc>(facts, all.hpcc);
  }
  return nullptr;
}

std::string ControllerHelp() {
  std::string text;
  for (ControllerKind kind : kAll) {
    absl::StrAppend(&text, ToString(kind), "\n");
    for (const ParameterInfo& row : ParametersOf(kind)) {
      absl::StrAppendFormat(&text, "  %-15s %-10g %s\n", row.name, row.value, row.meaning);
    }
  }
  return text;
}

}  // namespace weft::net
