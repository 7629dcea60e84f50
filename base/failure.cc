#include "base/failure.h"

#include <array>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"

namespace weft {
namespace {

constexpr char kPayload[] = "weft/failure";
constexpr size_t kLongestText = 256;
constexpr std::array kScopes = {"unknown", "request", "connection", "path", "device", "process"};

std::string Word(absl::string_view name) {
  return absl::StrReplaceAll(name, {{" ", "_"}, {"\n", "_"}});
}

}  // namespace

const char* ToString(FailureScope scope) { return kScopes[static_cast<size_t>(scope)]; }

absl::Status WithFailure(absl::Status status, const Failure& failure) {
  if (status.ok()) return status;
  Failure known = FailureOf(status);
  if (known.scope == FailureScope::kUnknown) known.scope = failure.scope;
  if (known.rank < 0) known.rank = failure.rank;
  if (known.device.empty()) known.device = failure.device;
  if (known.path.empty()) known.path = failure.path;
  status.SetPayload(kPayload, absl::Cord(ToText(known)));
  return status;
}

Failure FailureOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  return payload.has_value() ? ParseFailure(std::string(*payload)) : Failure{};
}

std::string ToText(const Failure& failure) {
  std::string text = ToString(failure.scope);
  if (failure.rank >= 0) absl::StrAppend(&text, " rank=", failure.rank);
  if (!failure.device.empty()) absl::StrAppend(&text, " device=", Word(failure.device));
  if (!failure.path.empty()) absl::StrAppend(&text, " path=", Word(failure.path));
  return text;
}

Failure ParseFailure(absl::string_view text) {
  Failure failure;
  if (text.size() > kLongestText) return {};
  bool first = true;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (std::exchange(first, false)) {
      size_t scope = 0;
      while (scope < kScopes.size() && word != kScopes[scope]) ++scope;
      if (scope == kScopes.size()) return {};
      failure.scope = static_cast<FailureScope>(scope);
    } else if (pair.first == "rank") {
      if (!absl::SimpleAtoi(pair.second, &failure.rank) || failure.rank < 0) return {};
    } else if (pair.first == "device") {
      failure.device = std::string(pair.second);
    } else if (pair.first == "path") {
      failure.path = std::string(pair.second);
    } else {
      return {};
    }
  }
  return failure;
}

std::string DescribeFailure(const absl::Status& status) {
  const Failure failure = FailureOf(status);
  if (failure == Failure{}) return std::string(status.message());
  return absl::StrCat(status.message(), " [", ToText(failure), "]");
}

}  // namespace weft
