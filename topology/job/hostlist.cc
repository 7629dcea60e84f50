#include "topology/job/hostlist.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/text_lines.h"

namespace weft::topology {
namespace {

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
         c == ':';
}

std::string Padded(int64_t number, size_t width) {
  std::string text = absl::StrCat(number);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

class Expander {
 public:
  explicit Expander(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<std::string>> All() {
    std::vector<std::string> names;
    while (true) {
      SkipSpace();
      if (at_ == text_.size()) return names;
      WEFT_ASSIGN_OR_RETURN(std::vector<std::string> more, One());
      if (names.size() + more.size() > kHostlistMost) return TooMany();
      names.insert(names.end(), std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
      SkipSpace();
      if (at_ == text_.size()) return names;
      if (text_[at_] != ',') return Wrong("expected ',' or the end");
      ++at_;
    }
  }

 private:
  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("hostlist '", text_.substr(0, 200),
                                                   text_.size() > 200 ? "..." : "", "', character ",
                                                   at_ + 1, ": ", what));
  }
  absl::Status TooMany() const {
    return Wrong(absl::StrCat("more than ", kHostlistMost, " hosts"));
  }
  void SkipSpace() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
  }

  // A name with any number of brackets; the last bracket varies fastest.
  absl::StatusOr<std::vector<std::string>> One() {
    std::vector<std::string> names = {""};
    size_t begin = at_;
    while (at_ < text_.size()) {
      if (text_[at_] == '[') {
        WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts, Bracket());
        if (names.size() * parts.size() > kHostlistMost) return TooMany();
        std::vector<std::string> product;
        product.reserve(names.size() * parts.size());
        for (const std::string& name : names) {
          for (const std::string& part : parts) product.push_back(name + part);
        }
        names = std::move(product);
      } else if (IsNameCharacter(text_[at_])) {
        for (std::string& name : names) name += text_[at_];
        ++at_;
      } else {
        break;
      }
    }
    if (at_ == begin) return Wrong("expected the name of a host");
    return names;
  }

  absl::StatusOr<int64_t> Number(size_t& width) {
    size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    int64_t number = 0;
    width = at_ - begin;
    if (width == 0 || width > 15 || !absl::SimpleAtoi(text_.substr(begin, width), &number)) {
      return Wrong("expected a number");
    }
    return number;
  }

  absl::StatusOr<std::vector<std::string>> Bracket() {
    std::vector<std::string> parts;
    ++at_;
    while (true) {
      size_t width = 0, last_width = 0;
      WEFT_ASSIGN_OR_RETURN(int64_t first, Number(width));
      int64_t last = first;
      if (at_ < text_.size() && text_[at_] == '-') {
        ++at_;
        WEFT_ASSIGN_OR_RETURN(last, Number(last_width));
      }
      if (last < first) return Wrong("the range runs backwards");
      if (last - first >= static_cast<int64_t>(kHostlistMost - parts.size())) return TooMany();
      for (int64_t i = first; i <= last; ++i) parts.push_back(Padded(i, width));
      if (at_ == text_.size()) return Wrong("expected ']'");
      if (text_[at_] == ']') break;
      if (text_[at_] != ',') return Wrong("expected ',', '-' or ']'");
      ++at_;
    }
    ++at_;
    return parts;
  }

  absl::string_view text_;
  size_t at_ = 0;
};

// "node007" -> "node", 7, 3. No trailing number: width 0.
struct Split {
  absl::string_view prefix;
  int64_t number = 0;
  size_t width = 0;
};

Split SplitName(absl::string_view name) {
  size_t digits = 0;
  while (digits < name.size() && digits < 15 &&
         std::isdigit(static_cast<unsigned char>(name[name.size() - digits - 1])) != 0) {
    ++digits;
  }
  Split split{name.substr(0, name.size() - digits), 0, digits};
  if (digits > 0 && !absl::SimpleAtoi(name.substr(name.size() - digits), &split.number)) {
    split.width = 0;
  }
  return split;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text) {
  return Expander(text).All();
}

std::string CompressHostlist(absl::Span<const std::string> names) {
  std::string out;
  for (size_t i = 0; i < names.size();) {
    Split first = SplitName(names[i]);
    std::string ranges;
    int runs = 0;
    size_t end = i;
    while (first.width > 0 && end < names.size()) {
      // One run of consecutive numbers, of which only those that print alike may be joined.
      Split begin = SplitName(names[end]);
      if (begin.prefix != first.prefix || begin.width == 0) break;
      size_t last = end;
      while (last + 1 < names.size()) {
        Split next = SplitName(names[last + 1]);
        int64_t number = begin.number + static_cast<int64_t>(last + 1 - end);
        if (next.prefix != first.prefix ||
            names[last + 1] != absl::StrCat(first.prefix, Padded(number, begin.width))) {
          break;
        }
        ++last;
      }
      absl::StrAppend(&ranges, runs++ == 0 ? "" : ",", Padded(begin.number, begin.width));
      if (last > end) {
        absl::StrAppend(&ranges, "-",
                        Padded(begin.number + static_cast<int64_t>(last - end), begin.width));
      }
      end = last + 1;
    }
    absl::StrAppend(&out, out.empty() ? "" : ",");
    if (end <= i + 1) {
      absl::StrAppend(&out, names[i]);
      end = i + 1;
    } else {
      absl::StrAppend(&out, first.prefix, "[", ranges, "]");
    }
    i = end;
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> ParseHostFile(absl::string_view text,
                                                       absl::string_view name) {
  std::vector<std::string> names;
  TextLines lines(text, name);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    absl::StatusOr<std::vector<std::string>> more = ExpandHostlist(words[0]);
    if (!more.ok()) return Annotate(more.status(), lines.Where());
    if (names.size() + more->size() > kHostlistMost) {
      return lines.Error("more than ", kHostlistMost, " hosts");
    }
    names.insert(names.end(), more->begin(), more->end());
  }
  if (names.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": names no host"));
  return names;
}

absl::StatusOr<std::vector<std::string>> ReadHostFile(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseHostFile(text, path);
}

}  // namespace weft::topology
