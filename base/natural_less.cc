#include "base/natural_less.h"

#include "absl/strings/ascii.h"

namespace weft {

bool NaturalLess(absl::string_view a, absl::string_view b) {
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (absl::ascii_isdigit(a[i]) && absl::ascii_isdigit(b[j])) {
      auto run = [](absl::string_view text, size_t& at) {
        while (at < text.size() && text[at] == '0') ++at;
        size_t begin = at;
        while (at < text.size() && absl::ascii_isdigit(text[at])) ++at;
        return text.substr(begin, at - begin);
      };
      absl::string_view x = run(a, i);
      absl::string_view y = run(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
    }
  }
  if (i == a.size() && j == b.size()) return a < b;  // "h1" and "h01"
  return i == a.size();
}

}  // namespace weft
