#include "topology/job/key_reader.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/settings.h"

namespace weft::topology {

absl::StatusOr<Section> SectionFromWords(const std::string& name, const std::string& text,
                                         const std::string& origin) {
  Section section{name, origin, {}};
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (word.find('=') == absl::string_view::npos || pair.first.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": '", word, "' is no key=value, as in tensor=8"));
    }
    section.entries.push_back({std::string(absl::StripAsciiWhitespace(pair.first)),
                               std::string(absl::StripAsciiWhitespace(pair.second)), origin});
  }
  return section;
}

const KeyValue* KeyReader::Find(absl::string_view key) {
  if (known_.empty() || known_.back() != key) known_.emplace_back(key);
  const KeyValue* found = nullptr;
  for (const KeyValue& entry : section_.entries) {
    if (entry.key == key) found = &entry;
  }
  return found;
}

void KeyReader::Fail(const KeyValue& entry, absl::string_view what) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(entry.origin, ": ", section_.name, ".",
                                                    entry.key, " = ", entry.value, ": ", what));
}

void KeyReader::Read(absl::string_view key, int64_t& out, int64_t least, int64_t most) {
  const KeyValue* entry = Find(key);
  if (entry == nullptr) return;
  int64_t value = 0;
  if (!absl::SimpleAtoi(entry->value, &value) || value < least || value > most) {
    return Fail(*entry, absl::StrCat("must be a whole number from ", least, " to ", most));
  }
  out = value;
}

void KeyReader::Read(absl::string_view key, int& out, int64_t least, int64_t most) {
  int64_t value = out;
  Read(key, value, least, most);
  out = static_cast<int>(value);
}

void KeyReader::Read(absl::string_view key, double& out, double least, double most) {
  const KeyValue* entry = Find(key);
  if (entry == nullptr) return;
  double value = 0;
  if (!absl::SimpleAtod(entry->value, &value) || !(value >= least && value <= most)) {
    return Fail(*entry, absl::StrCat("must be a number from ", least, " to ", most));
  }
  out = value;
}

void KeyReader::Read(absl::string_view key, bool& out) {
  const KeyValue* entry = Find(key);
  if (entry == nullptr) return;
  if (!absl::SimpleAtob(entry->value, &out)) Fail(*entry, "must be true or false");
}

void KeyReader::Read(absl::string_view key, std::string& out) {
  if (const KeyValue* entry = Find(key)) out = entry->value;
}

void KeyReader::Read(absl::string_view key, Bytes& out) {
  ReadWith(key, out, [](absl::string_view text) -> absl::StatusOr<Bytes> {
    absl::StatusOr<Bytes> value = ParseBytes(text);
    if (value.ok() && *value < Bytes(0)) return absl::InvalidArgumentError("must not be below 0");
    return value;
  });
}

void KeyReader::Read(absl::string_view key, Bandwidth& out) {
  ReadWith(key, out, [](absl::string_view text) -> absl::StatusOr<Bandwidth> {
    absl::StatusOr<Bandwidth> value = ParseBandwidth(text);
    if (value.ok() && !(value->bytes_per_second() > 0)) {
      return absl::InvalidArgumentError("must be above 0");
    }
    return value;
  });
}

void KeyReader::Read(absl::string_view key, absl::Duration& out) {
  ReadWith(key, out, [](absl::string_view text) -> absl::StatusOr<absl::Duration> {
    absl::Duration value;
    if (!absl::ParseDuration(text, &value) || value < absl::ZeroDuration() ||
        value == absl::InfiniteDuration()) {
      return absl::InvalidArgumentError("must be a time, as 5us or 1.5s");
    }
    return value;
  });
}

absl::Status KeyReader::Done() {
  if (!status_.ok()) return status_;
  for (const KeyValue& entry : section_.entries) {
    if (std::find(known_.begin(), known_.end(), entry.key) != known_.end()) continue;
    std::string nearest = NearestName(entry.key, known_);
    return absl::InvalidArgumentError(
        absl::StrCat(entry.origin, ": [", section_.name, "] has no key '", entry.key, "'",
                     nearest.empty() ? "" : absl::StrCat("; nearest: ", nearest), "; there are ",
                     absl::StrJoin(known_, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace weft::topology
