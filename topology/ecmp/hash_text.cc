#include "topology/ecmp/hash_text.h"

#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr std::array<std::pair<HashSelect, absl::string_view>, 3> kSelects = {{
    {HashSelect::kModulo, "modulo"},
    {HashSelect::kThreshold, "threshold"},
    {HashSelect::kResilient, "resilient"},
}};

absl::Status Bad(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("hash \"", text, "\": ", why,
                   "; right are linux:seed=1000 and crc16-ccitt:seed=7,offset=3,select=modulo"));
}

bool Number(absl::string_view text, uint32_t* out) {
  if (absl::ConsumePrefix(&text, "0x")) return absl::SimpleHexAtoi(text, out);
  return absl::SimpleAtoi(text, out);
}

// "key=value" into `options`; "": done, else why not.
std::string Take(absl::string_view key, absl::string_view value, SwitchHashOptions& options) {
  if (key == "select") {
    for (const auto& [select, name] : kSelects) {
      if (name != value) continue;
      options.select = select;
      return "";
    }
    return absl::StrCat("select is \"", value, "\", not modulo, threshold or resilient");
  }
  uint32_t number = 0;
  if (!Number(value, &number)) return absl::StrCat(key, " is \"", value, "\", not a number");
  if (key == "seed") {
    options.seed = number;
  } else if (key == "fields") {
    options.fields = number;
  } else if (key == "offset") {
    options.offset = static_cast<int>(number & 0xFFFF);
  } else if (key == "buckets") {
    options.buckets = number;
  } else if (key == "policy") {
    options.linux_policy = static_cast<int>(number & 0xFFFF);
  } else {
    return absl::StrCat("there is no \"", key,
                        "\"; there are seed, fields, offset, select, buckets and policy");
  }
  return "";
}

}  // namespace

absl::StatusOr<SwitchHash> ParseHash(absl::string_view text) {
  std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  SwitchHashOptions options;
  if (parts.first == "table") {
    absl::StatusOr<HashTable> table = HashTable::Parse(parts.second);
    if (!table.ok()) return Annotate(table.status(), "hash \"table:...\"");
    options.function = HashFunction::kTable;
    options.table = std::make_shared<const HashTable>(*std::move(table));
    return SwitchHash::Create(options);
  }
  if (parts.first == "linear") {
    absl::StatusOr<LinearHash> linear = LinearHash::Parse(parts.second);
    if (!linear.ok()) return Annotate(linear.status(), "hash \"linear:...\"");
    options.function = HashFunction::kLinear;
    options.linear = std::make_shared<const LinearHash>(*std::move(linear));
    return SwitchHash::Create(options);
  }
  absl::StatusOr<HashFunction> function =
      ParseHashFunction(parts.first == "crc16" ? "crc16-ccitt" : parts.first);
  if (!function.ok()) return Bad(text, function.status().message());
  options.function = *function;
  if (options.function == HashFunction::kLinux) options.select = HashSelect::kThreshold;
  for (absl::string_view word : absl::StrSplit(parts.second, ',', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const std::string why = Take(pair.first, pair.second, options);
    if (!why.empty()) return Bad(text, why);
  }
  absl::StatusOr<SwitchHash> hash = SwitchHash::Create(options);
  if (!hash.ok()) return Bad(text, hash.status().message());
  return hash;
}

std::string HashText(const SwitchHashOptions& options) {
  if (options.table != nullptr) return absl::StrCat("table:", options.table->ToString());
  if (options.linear != nullptr) return absl::StrCat("linear:", options.linear->ToString());
  const bool is_linux = options.function == HashFunction::kLinux;
  std::string text = absl::StrFormat("%s:seed=%d,fields=0x%x", ToString(options.function),
                                     options.seed, options.fields);
  if (is_linux) absl::StrAppend(&text, ",policy=", options.linux_policy);
  if (is_linux && options.select == HashSelect::kThreshold) return text;
  if (options.offset != 0) absl::StrAppend(&text, ",offset=", options.offset);
  for (const auto& [select, name] : kSelects) {
    if (select == options.select) absl::StrAppend(&text, ",select=", name);
  }
  if (options.select == HashSelect::kResilient) {
    absl::StrAppend(&text, ",buckets=", options.buckets);
  }
  return text;
}

}  // namespace weft::topology
