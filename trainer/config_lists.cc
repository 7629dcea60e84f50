#include "trainer/config_lists.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft::train {
namespace {

// Layers from `first` to `last`, both included.
struct LayerRange {
  int64_t first = 0, last = 0;
};

// "first-last" or a number; none where it is neither, or `last` is before `first`.
std::optional<LayerRange> ParseRange(absl::string_view text) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  LayerRange range;
  const bool is_range = absl::SimpleAtoi(ends.front(), &range.first) &&
                        absl::SimpleAtoi(ends.back(), &range.last) && range.first <= range.last;
  return is_range ? std::optional(range) : std::nullopt;
}

// Sets `kind` for the layers of a range.
absl::Status SetRange(absl::string_view text, RecomputeKind kind,
                      std::vector<RecomputeKind>& recompute) {
  const auto layers = static_cast<int64_t>(recompute.size());
  const std::optional<LayerRange> range = ParseRange(text);
  if (!range || range->last >= layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no range of the ", layers, " layers, 0 to ", layers - 1));
  }
  std::fill(recompute.begin() + range->first, recompute.begin() + range->last + 1, kind);
  return absl::OkStatus();
}

struct WeightedPrefix {
  double weight = 0;
  std::string prefix;
};

// A number, blanks and a text; none where it is anything else.
std::optional<WeightedPrefix> ParseWeighted(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const size_t blank = text.find_first_of(" \t\r\n");
  WeightedPrefix weighted;
  if (blank == absl::string_view::npos ||
      !absl::SimpleAtod(text.substr(0, blank), &weighted.weight)) {
    return std::nullopt;
  }
  weighted.prefix = std::string(absl::StripLeadingAsciiWhitespace(text.substr(blank)));
  return weighted;
}

}  // namespace

absl::StatusOr<std::vector<bool>> ParseLayers(absl::string_view text, int64_t layers) {
  std::vector<bool> chosen(static_cast<size_t>(layers), false);
  if (text == "all") return std::vector<bool>();
  if (text == "even" || text == "odd") {
    for (size_t i = text == "odd" ? 1 : 0; i < chosen.size(); i += 2) chosen[i] = true;
    return chosen;
  }
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::optional<LayerRange> range = ParseRange(part);
    if (!range) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is no layer; all, even, odd or a list as 0-3,6 is right"));
    }
    if (range->last >= layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not among the layers 0 to ", layers - 1));
    }
    std::fill(chosen.begin() + range->first, chosen.begin() + range->last + 1, true);
  }
  return chosen;
}

absl::StatusOr<std::vector<RecomputeKind>> ParseRecompute(absl::string_view text, int64_t layers) {
  std::vector<RecomputeKind> recompute(static_cast<size_t>(layers), RecomputeKind::kNone);
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pieces =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    RecomputeKind kind = RecomputeKind::kNone;
    if (pieces.first == "full") {
      kind = RecomputeKind::kFull;
    } else if (pieces.first == "selective") {
      kind = RecomputeKind::kSelective;
    } else if (pieces.first != "none") {
      return absl::InvalidArgumentError(
          absl::StrCat("'", pieces.first, "' is none of none, selective and full"));
    }
    if (pieces.second.empty()) {
      std::fill(recompute.begin(), recompute.end(), kind);
    } else {
      WEFT_RETURN_IF_ERROR(SetRange(pieces.second, kind, recompute));
    }
  }
  return recompute;
}

absl::StatusOr<OverlapAxes> ParseOverlap(absl::string_view text) {
  if (text == "all") return OverlapAxes();
  OverlapAxes axes{false, false, false, false};
  if (text == "none") return axes;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    bool* const axis = part == "data"      ? &axes.data
                       : part == "tensor"  ? &axes.tensor
                       : part == "context" ? &axes.context
                       : part == "expert"  ? &axes.expert
                                           : nullptr;
    if (axis == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", part, "' is no axis; all, none, or some of data, tensor, context, expert is right"));
    }
    *axis = true;
  }
  return axes;
}

absl::StatusOr<DataBlend> ParseDataBlend(absl::string_view text) {
  if (text.empty()) return DataBlend();
  if (!ParseWeighted(text)) return DataBlend{{std::string(text)}, {1.0}};
  DataBlend blend;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::optional<WeightedPrefix> one = ParseWeighted(part);
    if (!one) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", absl::StripAsciiWhitespace(part),
                       "' is no dataset with its weight; a list as 0.7 data/web, 0.3 data/books is "
                       "right"));
    }
    if (!(one->weight > 0) || !std::isfinite(one->weight)) {
      return absl::InvalidArgumentError(absl::StrCat("the weight of ", one->prefix, " is ",
                                                     one->weight, "; a positive number is right"));
    }
    const auto is_same = [&one](const std::string& other) {
      return std::filesystem::path(other).lexically_normal() ==
             std::filesystem::path(one->prefix).lexically_normal();
    };
    if (std::any_of(blend.prefixes.begin(), blend.prefixes.end(), is_same)) {
      return absl::InvalidArgumentError(
          absl::StrCat(one->prefix, " is there twice; its weights in one are right"));
    }
    blend.prefixes.push_back(one->prefix);
    blend.shares.push_back(one->weight);
  }
  const double sum = std::accumulate(blend.shares.begin(), blend.shares.end(), 0.0);
  if (!std::isfinite(sum)) return absl::InvalidArgumentError("the weights' sum is not finite");
  for (double& share : blend.shares) share /= sum;
  return blend;
}

}  // namespace weft::train
