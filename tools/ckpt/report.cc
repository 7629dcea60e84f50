#include "tools/ckpt/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/json_text.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/run_states.h"

namespace weft::ckpt {
namespace {

using Json = nlohmann::ordered_json;
using train::Manifest;

void PrintJson(const Json& json) {
  const std::string text = JsonText(json) + "\n";
  std::fputs(text.c_str(), stdout);
}

int64_t BytesOf(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const train::ShardInfo& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

int64_t ParametersOf(const Manifest& manifest) {
  int64_t elements = 0;
  for (const train::BufferLayout& buffer : manifest.buffers) {
    if (absl::StartsWith(buffer.name, train::kParameterPrefix)) elements += buffer.elements;
  }
  return elements;
}

// Buffers that lie in several shards, and those of which a shard has every so many elements, as of
// a matrix that the tensor axis cuts by columns.
struct Cuts {
  int64_t cut = 0;
  int64_t strided = 0;
};
Cuts CutsOf(const Manifest& manifest) {
  Cuts cuts;
  for (const train::BufferLayout& buffer : manifest.buffers) {
    const auto& slices = buffer.slices;
    if (slices.size() > 1) ++cuts.cut;
    const bool strided = std::any_of(slices.begin(), slices.end(),
                                     [](const auto& slice) { return slice.range.count > 1; });
    if (strided) ++cuts.strided;
  }
  return cuts;
}

std::string OptimizerOf(const Manifest& manifest) {
  const auto found = manifest.states.find(train::kOptimizerState);
  return found == manifest.states.end() ? "" : found->second;
}

std::string Size(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string NameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

Json Describe(const Manifest& manifest) {
  const Cuts cuts = CutsOf(manifest);
  return {{"step", manifest.step},
          {"samples_consumed", manifest.samples_consumed},
          {"version", manifest.version},
          {"bytes", BytesOf(manifest)},
          {"ranks", manifest.world_size},
          {"parameters", ParametersOf(manifest)},
          {"buffers", manifest.buffers.size()},
          {"buffers_cut", cuts.cut},
          {"buffers_strided", cuts.strided},
          {"optimizer", OptimizerOf(manifest)}};
}

Json FaultsOf(const Verification& verification) {
  Json faults = Json::array();
  for (const Fault& fault : verification.faults) {
    faults.push_back({{"file", fault.file},
                      {"buffer", fault.buffer},
                      {"expected", fault.expected},
                      {"found", fault.found}});
  }
  return faults;
}

// An infinity is no number of JSON.
Json Number(double value) { return std::isfinite(value) ? Json(value) : Json("inf"); }

absl::string_view NameOf(Comparison comparison) {
  switch (comparison) {
    case Comparison::kEqual:
      return "equal";
    case Comparison::kValues:
      return "values";
    case Comparison::kShape:
      return "shape";
    case Comparison::kType:
      return "type";
    case Comparison::kOnlyInFirst:
      return "only in the first";
    case Comparison::kOnlyInSecond:
      return "only in the second";
  }
  return "";
}

std::string Sentence(const TensorDifference& difference) {
  switch (difference.comparison) {
    case Comparison::kValues:
      return absl::StrFormat("%d of %d elements differ, by %.3g at most, relative %.3g",
                             difference.differing, difference.elements, difference.max_absolute,
                             difference.max_relative);
    case Comparison::kShape:
    case Comparison::kType:
      return absl::StrCat(difference.first, " and ", difference.second);
    default:
      return std::string(NameOf(difference.comparison));
  }
}

}  // namespace

std::string Listed::reason() const {
  if (!status.ok()) return std::string(status.message());
  if (verification.whole()) return "";
  const size_t others = verification.faults.size() - 1;
  return absl::StrCat(verification.faults[0].Text(),
                      others > 0 ? absl::StrCat(" (and ", others, " more: weft-ckpt verify)") : "");
}

void Print(const Listing& listing, bool as_json) {
  if (as_json) {
    Json rows = Json::array();
    for (const Listed& listed : listing.checkpoints) {
      Json row = {{"path", listed.path}, {"whole", listed.whole()}, {"reason", listed.reason()}};
      if (listed.status.ok()) row.update(Describe(listed.verification.manifest));
      rows.push_back(std::move(row));
    }
    return PrintJson({{"folder", listing.folder},
                      {"every_byte_read", listing.read_all},
                      {"checkpoints", std::move(rows)},
                      {"unfinished", listing.unfinished}});
  }
  for (const Listed& listed : listing.checkpoints) {
    const std::string name = NameOf(listed.path);
    if (!listed.status.ok()) {
      absl::PrintF("%s  NOT WHOLE: %s\n", name, listed.reason());
      continue;
    }
    const Manifest& manifest = listed.verification.manifest;
    const Cuts cuts = CutsOf(manifest);
    const std::string optimizer = OptimizerOf(manifest);
    absl::PrintF("%s  %s  %d ranks, %d buffers (%d cut over ranks, %d of them by columns)%s  %s\n",
                 name, Size(BytesOf(manifest)), manifest.world_size, manifest.buffers.size(),
                 cuts.cut, cuts.strided,
                 optimizer.empty() ? "" : absl::StrCat(", optimizer ", optimizer),
                 listed.whole() ? (listing.read_all ? "whole" : "sizes are right")
                                : absl::StrCat("NOT WHOLE: ", listed.reason()));
  }
  for (const std::string& path : listing.unfinished) {
    absl::PrintF("%s  being written, or left by a writer that was killed\n", NameOf(path));
  }
}

void Print(const std::string& path, const Verification& verification, bool as_json) {
  const Manifest& manifest = verification.manifest;
  if (as_json) {
    Json row = {{"path", path}, {"whole", verification.whole()}};
    row.update(Describe(manifest));
    row["bytes_read"] = verification.bytes;
    row["tensors"] = verification.tensors;
    row["faults"] = FaultsOf(verification);
    return PrintJson(row);
  }
  for (const Fault& fault : verification.faults) absl::PrintF("%s\n", fault.Text());
  absl::PrintF("%s: step %d, %d shards, %d tensors, %s read: %s\n", path, manifest.step,
               manifest.world_size, verification.tensors, Size(verification.bytes),
               verification.whole() ? "whole" : "NOT WHOLE");
}

bool AllEqual(const std::vector<TensorDifference>& differences) {
  return std::all_of(differences.begin(), differences.end(),
                     [](const TensorDifference& d) { return d.comparison == Comparison::kEqual; });
}

void Print(const std::vector<TensorDifference>& differences, bool all, bool as_json) {
  const auto equal =
      std::count_if(differences.begin(), differences.end(),
                    [](const TensorDifference& d) { return d.comparison == Comparison::kEqual; });
  if (as_json) {
    Json rows = Json::array();
    for (const TensorDifference& difference : differences) {
      if (difference.comparison == Comparison::kEqual && !all) continue;
      Json row = {{"name", difference.name}, {"is", std::string(NameOf(difference.comparison))}};
      if (difference.comparison == Comparison::kValues) {
        row.update({{"elements", difference.elements},
                    {"differing", difference.differing},
                    {"max_absolute", Number(difference.max_absolute)},
                    {"max_relative", Number(difference.max_relative)}});
      } else if (!difference.first.empty()) {
        row.update({{"first", difference.first}, {"second", difference.second}});
      }
      rows.push_back(std::move(row));
    }
    return PrintJson({{"equal", AllEqual(differences)},
                      {"tensors", differences.size()},
                      {"tensors_equal", equal},
                      {"differences", std::move(rows)}});
  }
  for (const TensorDifference& difference : differences) {
    if (difference.comparison == Comparison::kEqual && !all) continue;
    absl::PrintF("%s: %s\n", difference.name, Sentence(difference));
  }
  absl::PrintF("%d of %d tensors are equal to the bit\n", equal, differences.size());
}

}  // namespace weft::ckpt
