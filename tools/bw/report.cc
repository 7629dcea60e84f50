#include "tools/bw/report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/host_name.h"
#include "base/json_text.h"
#include "base/median.h"

namespace weft::bw {
namespace {

using Json = nlohmann::ordered_json;

const char* ReductionOf(const Case& what) {
  return InfoOf(what.operation).reduces() ? ToString(what.op) : "none";
}

int RootOf(const Case& what) { return InfoOf(what.operation).rooted() ? what.root : -1; }

}  // namespace

double Report::AlgorithmBandwidth(const Case& what, const Result& result) const {
  return static_cast<double>(SizeOf(what, ranks_).count()) / (result.time_us() * 1e3);
}

double Report::BusBandwidth(const Case& what, const Result& result) const {
  if (!options_.groups.has_value()) {
    return AlgorithmBandwidth(what, result) * BusFactor(what.operation, ranks_);
  }
  double factors = 0;
  for (const topology::MeshAxis& axis : options_.groups->axes()) {
    if (axis.size > 1) factors += BusFactor(what.operation, axis.size);
  }
  return AlgorithmBandwidth(what, result) * factors;
}

void Report::Begin(const std::string& joined) {
  if (options_.json) return;
  std::string settings;
  for (const SettingRow& row : options_.settings.table()) {
    if (options_.settings.IsDefault(row.name)) continue;
    absl::StrAppend(&settings, " ", row.name, "=", options_.settings.ValueText(row.name));
  }
  absl::PrintF("# weft-bw: %d ranks, rank 0 is pid %d on %s\n", ranks_, getpid(), HostName());
  absl::PrintF(
      "# minBytes %d maxBytes %d step: %s warmup iters: %d iters: %s repeats: %d in flight: %d "
      "validation: %d\n",
      options_.size_min.count(), options_.size_max.count(),
      options_.factor > 1 ? absl::StrFormat("%g(factor)", options_.factor)
                          : absl::StrFormat("%d(bytes)", options_.step.count()),
      options_.warmup,
      options_.repeat_time > absl::ZeroDuration()
          ? absl::StrCat("for ", absl::FormatDuration(options_.repeat_time))
          : absl::StrCat(options_.iterations),
      options_.repeats, options_.in_flight, options_.check);
  if (options_.groups.has_value()) {
    absl::PrintF("# at once in the groups along each axis of %s\n", options_.groups->Describe());
  }
  absl::PrintF("# settings:%s\n", settings.empty() ? " defaults" : settings);
  if (!joined.empty()) absl::PrintF("# %s\n", joined);
}

void Report::BeginOperation(const OperationInfo& info) {
  if (options_.json) return;
  std::string head = "    time   algbw   busbw  #wrong", unit = "    (us)  (GB/s)  (GB/s)        ";
  if (options_.iteration_stats) {
    head += "    i_min    i_p50    i_p99    i_max";
    unit += "     (us)     (us)     (us)     (us)";
  }
  std::string gap(head.size() - 12, ' ');
  absl::PrintF("#\n# %s\n", info.name);
  absl::PrintF("#%60s out-of-place%s in-place\n", "", gap);
  absl::PrintF("#%11s  %12s %10s %6s %5s %s %s  %s\n", "size", "count", "type", "redop", "root",
               head, head, "algorithm");
  absl::PrintF("#%11s  %12s %10s %6s %5s %s %s\n", "(B)", "(elements)", "", "", "", unit, unit);
  std::fflush(stdout);
}

std::string Report::Columns(const Case& what, const Result& result) {
  if (!result.measured) {
    return absl::StrFormat("%8s %7s %7s %7s", "N/A", "N/A", "N/A", "N/A") +
           std::string(options_.iteration_stats ? 36 : 0, ' ');
  }
  std::string text = absl::StrFormat("%8.2f %7.2f %7.2f %7s", result.time_us(),
                                     AlgorithmBandwidth(what, result), BusBandwidth(what, result),
                                     result.wrong < 0 ? "N/A" : absl::StrCat(result.wrong));
  if (options_.iteration_stats) {
    absl::StrAppendFormat(&text, " %8.2f %8.2f %8.2f %8.2f", result.i_min_us, result.i_p50_us,
                          result.i_p99_us, result.i_max_us);
  }
  return text;
}

Json Report::Json(const Case& what, const Result& result) {
  if (!result.measured) return nullptr;
  nlohmann::ordered_json object = {
      {"time_us", result.time_us()},
      {"min_us", result.repeats_us.front()},
      {"max_us", result.repeats_us.back()},
      {"repeats_us", result.repeats_us},
      {"iterations", result.iterations},
      {"algbw_GBps", AlgorithmBandwidth(what, result)},
      {"busbw_GBps", BusBandwidth(what, result)},
      {"wrong",
       result.wrong < 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(result.wrong)},
  };
  if (options_.iteration_stats) {
    object["i_min_us"] = result.i_min_us;
    object["i_p50_us"] = result.i_p50_us;
    object["i_p99_us"] = result.i_p99_us;
    object["i_max_us"] = result.i_max_us;
  }
  return object;
}

void Report::Row(const Case& what, const Result& out_of_place, const Result& in_place,
                 bool chosen) {
  for (const Result* result : {&out_of_place, &in_place}) {
    if (!result->measured) continue;
    wrong_ += std::max<int64_t>(result->wrong, 0);
    busbw_sum_ += BusBandwidth(what, *result);
    ++busbw_count_;
  }
  const OperationInfo& info = InfoOf(what.operation);
  const std::string& algorithm =
      out_of_place.measured ? out_of_place.algorithm : in_place.algorithm;
  if (options_.json) {
    rows_.push_back({{"op", info.name},
                     {"size", SizeOf(what, ranks_).count()},
                     {"count", what.count},
                     {"type", ToString(what.type)},
                     {"redop", ReductionOf(what)},
                     {"root", RootOf(what)},
                     {"algorithm", algorithm},
                     {"why", out_of_place.measured ? out_of_place.why : in_place.why},
                     {"out_of_place", Json(what, out_of_place)},
                     {"in_place", Json(what, in_place)}});
    if (options_.compare) rows_.back()["chosen"] = chosen;
    return;
  }
  absl::PrintF("%12d  %12d %10s %6s %5d %s %s  %s%s\n", SizeOf(what, ranks_).count(), what.count,
               ToString(what.type), ReductionOf(what), RootOf(what), Columns(what, out_of_place),
               Columns(what, in_place), algorithm, chosen ? " *" : "");
  std::fflush(stdout);
}

void Report::AddRegret(const Case& what, absl::Span<const Result> results, size_t chosen) {
  if (!results[chosen].measured) return;
  double least = results[chosen].time_us();
  for (const Result& result : results) least = std::min(least, result.time_us());
  regrets_.push_back(results[chosen].time_us() / least - 1);
  if (regrets_.back() <= regret_max_) return;
  regret_max_ = regrets_.back();
  regret_max_at_ =
      absl::StrCat(InfoOf(what.operation).name, " of ", ToString(SizeOf(what, ranks_)));
}

void Report::End(const std::string& links) {
  double average = busbw_count_ > 0 ? busbw_sum_ / busbw_count_ : 0;
  if (options_.json) {
    nlohmann::ordered_json settings = nlohmann::ordered_json::object();
    for (const SettingRow& row : options_.settings.table()) {
      if (options_.settings.IsDefault(row.name)) continue;
      settings[std::string(row.name)] = options_.settings.ValueText(row.name);
    }
    nlohmann::ordered_json object = {
        {"program", "weft-bw"},
        {"host", HostName()},
        {"ranks", ranks_},
        {"groups", options_.groups.has_value() ? options_.groups->ToText() : ""},
        {"settings", settings},
        {"links", std::vector<std::string>(absl::StrSplit(links, '\n', absl::SkipEmpty()))},
        {"rows", rows_},
        {"out_of_bounds", wrong_},
        {"average_busbw_GBps", average}};
    std::cout << JsonText(object) << "\n" << std::flush;
    return;
  }
  absl::PrintF("#\n");
  for (absl::string_view line : absl::StrSplit(links, '\n', absl::SkipEmpty())) {
    absl::PrintF("# %s\n", line);
  }
  absl::PrintF("# Out of bounds values : %d %s\n", wrong_, wrong_ == 0 ? "OK" : "FAILED");
  absl::PrintF("# Avg bus bandwidth    : %.4f\n", average);
  if (!regrets_.empty()) {
    absl::PrintF("# Regret of the choices (*): median %.1f %%, at most %.1f %%, %s\n",
                 100 * UpperMedian(regrets_), 100 * regret_max_, regret_max_at_);
  }
  std::fflush(stdout);
}

}  // namespace weft::bw
