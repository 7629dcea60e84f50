#include "collectives/verify_memory.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::collectives::verify {

std::string ToText(const Contents& contents) {
  std::vector<std::string> parts;
  for (size_t r = 0; r < contents.times.size(); ++r) {
    if (contents.times[r] == 1) parts.push_back(absl::StrCat(r));
    if (contents.times[r] > 1) parts.push_back(absl::StrCat(contents.times[r], "x", r));
  }
  return absl::StrCat("{", absl::StrJoin(parts, ","), "}", contents.averaged ? "/n" : "");
}

Stretches Reduce(const Stretches& left, const Stretches& right) {
  Stretches out;
  size_t l = 0, r = 0;
  int64_t l_at = 0, r_at = 0;
  while (l < left.size() && r < right.size()) {
    const int64_t length = std::min(left[l].length - l_at, right[r].length - r_at);
    Stretch a = left[l].Part(l_at, length);
    const Stretch b = right[r].Part(r_at, length);
    a.known =
        a.known && b.known && a.index == b.index && !a.contents.averaged && !b.contents.averaged;
    for (size_t i = 0; a.known && i < a.contents.times.size(); ++i) {
      a.contents.times[i] += b.contents.times[i];
    }
    out.push_back(a);
    l_at += length, r_at += length;
    if (l_at == left[l].length) ++l, l_at = 0;
    if (r_at == right[r].length) ++r, r_at = 0;
  }
  return out;
}

Stretches Memory::Read(int64_t begin, int64_t length) const {
  Stretches out;
  int64_t at = begin;
  const int64_t end = begin + length;
  auto next = stretches_.upper_bound(begin);
  if (next != stretches_.begin()) --next;
  for (; next != stretches_.end() && next->first < end; ++next) {
    const int64_t from = std::max(next->first, at);
    const int64_t to = std::min(next->first + next->second.length, end);
    if (from >= to) continue;
    if (from > at) out.push_back({from - at});
    out.push_back(next->second.Part(from - next->first, to - from));
    at = to;
  }
  if (at < end) out.push_back({end - at});
  return out;
}

void Memory::Write(int64_t begin, const Stretches& values) {
  int64_t length = 0;
  for (const Stretch& value : values) length += value.length;
  Cut(begin), Cut(begin + length);
  stretches_.erase(stretches_.lower_bound(begin), stretches_.lower_bound(begin + length));
  for (const Stretch& value : values) {
    if (value.length > 0) stretches_[begin] = value;
    begin += value.length;
  }
}

void Memory::Cut(int64_t at) {
  auto next = stretches_.lower_bound(at);
  if (next == stretches_.begin()) return;
  auto& [begin, value] = *std::prev(next);
  if (begin + value.length <= at) return;
  stretches_[at] = value.Part(at - begin, begin + value.length - at);
  value.length = at - begin;
}

}  // namespace weft::collectives::verify
