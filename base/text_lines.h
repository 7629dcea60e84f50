// The numbered lines of a text file, for parsers whose errors name file and line.
#ifndef WEFT_BASE_TEXT_LINES_H_
#define WEFT_BASE_TEXT_LINES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace weft {

inline std::vector<absl::string_view> Words(absl::string_view line) {
  return absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
}

// Lines and words point into the text, which outlives them.
class TextLines {
 public:
  // `file`: the name that errors give the text.
  TextLines(absl::string_view text, absl::string_view file) : rest_(text), file_(file) {}

  // False: there are no more. The line comes without what follows '#' if `comments`, and without
  // blanks at its ends.
  bool Next(absl::string_view& line, bool comments = true) {
    if (is_done_) return false;
    size_t end = rest_.find('\n');
    line = rest_.substr(0, end);
    is_done_ = end == absl::string_view::npos;
    if (!is_done_) rest_ = rest_.substr(end + 1);
    ++number_;
    if (comments) line = line.substr(0, line.find('#'));
    line = absl::StripAsciiWhitespace(line);
    return true;
  }

  // The words of the next line that has any but comments. False: there is none.
  bool NextWords(std::vector<absl::string_view>& words) {
    absl::string_view line;
    while (Next(line)) {
      words = Words(line);
      if (!words.empty()) return true;
    }
    return false;
  }

  bool is_done() const { return is_done_; }
  int number() const { return number_; }  // of the line that was taken last, from 1
  const std::string& file() const { return file_; }
  std::string Where() const { return absl::StrCat(file_, ":", number_); }

  template <typename... What>
  absl::Status Error(const What&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(Where(), ": ", what...));
  }

 private:
  absl::string_view rest_;
  const std::string file_;
  int number_ = 0;
  bool is_done_ = false;
};

// At most 64 characters of a foreign text, without what a terminal would act on.
inline std::string Excerpt(absl::string_view text) {
  std::string excerpt;
  for (char c : text.substr(0, 64)) excerpt += absl::ascii_isprint(c) ? c : '?';
  return excerpt;
}

}  // namespace weft

#endif  // WEFT_BASE_TEXT_LINES_H_
