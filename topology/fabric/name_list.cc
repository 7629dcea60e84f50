#include "topology/fabric/name_list.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr size_t kMaxDigits = 18;  // what surely fits 64 bits

absl::Status TooMany(absl::string_view text, size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("\"", text.substr(0, 64), "\" means more than ", limit, " names"));
}

// What a name is made of: fixed text, or the alternatives between brackets.
using Part = std::vector<std::string>;

absl::Status ExpandRange(absl::string_view range, size_t limit, Part& part) {
  std::pair<absl::string_view, absl::string_view> ends =
      absl::StrSplit(range, absl::MaxSplits('-', 1));
  auto is_number = [](absl::string_view text) {
    return !text.empty() && text.size() <= kMaxDigits &&
           std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  };
  if (range.find('-') == absl::string_view::npos) ends.second = ends.first;
  int64_t first = 0;
  int64_t last = 0;
  if (!is_number(ends.first) || !is_number(ends.second) || !absl::SimpleAtoi(ends.first, &first) ||
      !absl::SimpleAtoi(ends.second, &last)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", range.substr(0, 64), "\" is neither a number nor a range as 0-7"));
  }
  if (last < first) {
    return absl::InvalidArgumentError(absl::StrCat("the range ", range, " runs backwards"));
  }
  if (static_cast<uint64_t>(last - first) >= limit - std::min(limit, part.size())) {
    return TooMany(range, limit);
  }
  for (int64_t i = first; i <= last; ++i) {
    part.push_back(absl::StrFormat("%0*d", static_cast<int>(ends.first.size()), i));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Part>> ParseParts(absl::string_view word, size_t limit) {
  std::vector<Part> parts;
  for (size_t at = 0; at < word.size();) {
    size_t open = word.find('[', at);
    absl::string_view fixed = word.substr(at, open - at);
    if (fixed.find(']') != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word.substr(0, 64), "\": a ] without ["));
    }
    if (!fixed.empty()) parts.push_back({std::string(fixed)});
    if (open == absl::string_view::npos) break;
    size_t close = word.find(']', open);
    if (close == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", word.substr(0, 64), "\": a [ without ]"));
    }
    Part part;
    for (absl::string_view range : absl::StrSplit(word.substr(open + 1, close - open - 1), ',')) {
      WEFT_RETURN_IF_ERROR(ExpandRange(range, limit, part));
    }
    parts.push_back(std::move(part));
    at = close + 1;
  }
  return parts;
}

absl::Status ExpandWord(absl::string_view word, size_t limit, std::vector<std::string>& names) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Part> parts, ParseParts(word, limit));
  size_t count = 1;
  for (const Part& part : parts) {
    if (part.size() > limit / count) return TooMany(word, limit);
    count *= part.size();
  }
  if (names.size() + count > limit) return TooMany(word, limit);
  for (size_t i = 0; i < count; ++i) {
    std::string name;
    size_t rest = i;
    size_t below = count;
    for (const Part& part : parts) {
      below /= part.size();
      name += part[rest / below];
      rest %= below;
    }
    names.push_back(std::move(name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNames(absl::string_view text, size_t limit) {
  std::vector<std::string> names;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    char c = i < text.size() ? text[i] : ',';
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    absl::string_view word = absl::StripAsciiWhitespace(text.substr(begin, i - begin));
    if (word.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", text.substr(0, 64), "\": a name is missing"));
    }
    WEFT_RETURN_IF_ERROR(ExpandWord(word, limit, names));
    begin = i + 1;
  }
  return names;
}

NumberedName SplitNumber(absl::string_view name) {
  size_t end = name.find_last_of("0123456789");
  if (end == absl::string_view::npos) return {name, {}, {}};
  size_t begin = end;
  while (begin > 0 && absl::ascii_isdigit(name[begin - 1]) && end - begin + 1 < kMaxDigits) --begin;
  return {name.substr(0, begin), name.substr(begin, end + 1 - begin), name.substr(end + 1)};
}

std::string CompressNames(absl::Span<const std::string> names) {
  std::vector<std::string> words;
  for (size_t i = 0; i < names.size();) {
    NumberedName head = SplitNumber(names[i]);
    std::vector<std::string> ranges;
    size_t at = i;
    // A run of consecutive numbers after the other, as long as all else is the same.
    while (at < names.size()) {
      NumberedName first = SplitNumber(names[at]);
      if (first.digits.empty() || first.prefix != head.prefix || first.suffix != head.suffix) break;
      int64_t number = 0;
      (void)absl::SimpleAtoi(first.digits, &number);
      size_t length = 1;
      while (at + length < names.size()) {
        NumberedName next = SplitNumber(names[at + length]);
        std::string expected = absl::StrFormat("%0*d", static_cast<int>(first.digits.size()),
                                               number + static_cast<int64_t>(length));
        if (next.prefix != head.prefix || next.suffix != head.suffix || next.digits != expected) {
          break;
        }
        ++length;
      }
      absl::string_view last = SplitNumber(names[at + length - 1]).digits;
      ranges.push_back(length == 1 ? std::string(first.digits)
                                   : absl::StrCat(first.digits, "-", last));
      at += length;
    }
    if (at <= i + 1) {
      words.push_back(names[i]);
      ++i;
    } else {
      words.push_back(absl::StrCat(head.prefix, "[", absl::StrJoin(ranges, ","), "]", head.suffix));
      i = at;
    }
  }
  return absl::StrJoin(words, ",");
}

}  // namespace weft::topology
