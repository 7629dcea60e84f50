// Symbolic memory for the verification of schedules: it holds not bytes, but the ranks whose
// contributions make up each element. Each thread uses its own.
#ifndef WEFT_COLLECTIVES_VERIFY_MEMORY_H_
#define WEFT_COLLECTIVES_VERIFY_MEMORY_H_

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::collectives::verify {

// What one element is made of: how often each rank's contribution went in, and whether the average
// was taken.
struct Contents {
  std::vector<int> times;  // by rank
  bool averaged = false;
  auto operator<=>(const Contents&) const = default;
};

std::string ToText(const Contents& contents);  // "{0,2x3}/n"

// A stretch of elements of like contents; element i of it is number index + i of the collective.
struct Stretch {
  int64_t length = 0;
  bool known = false;
  Contents contents;
  int64_t index = 0;

  Stretch Part(int64_t offset, int64_t part) const {
    return {part, known, contents, index + offset};
  }
};
using Stretches = std::vector<Stretch>;

// What left op right holds; unknown where elements of different numbers meet.
Stretches Reduce(const Stretches& left, const Stretches& right);

// By elements from 0 on; what was never written is unknown.
class Memory {
 public:
  Stretches Read(int64_t begin, int64_t length) const;
  void Write(int64_t begin, const Stretches& values);

 private:
  void Cut(int64_t at);

  std::map<int64_t, Stretch> stretches_;  // by first element; they do not overlap
};

}  // namespace weft::collectives::verify

#endif  // WEFT_COLLECTIVES_VERIFY_MEMORY_H_
