// The median of some values. Of an even number of them, two are in the middle: either is taken, so
// that the median is one of the values.
#ifndef WEFT_BASE_MEDIAN_H_
#define WEFT_BASE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace weft {

// The value that has `below` others before it in their order. None of the values is NaN; `below` is
// less than their number.
template <typename T>
T NthValue(std::vector<T> values, size_t below) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// The upper one of two in the middle. T() where there are no values. None of them is NaN.
template <typename T>
T UpperMedian(std::vector<T> values) {
  const size_t middle = values.size() / 2;
  return values.empty() ? T() : NthValue(std::move(values), middle);
}

// The lower one of two in the middle: of the times of two ranks, the longer one is above it. T()
// where there are no values. None of them is NaN.
template <typename T>
T LowerMedian(std::vector<T> values) {
  const size_t middle = (std::max<size_t>(values.size(), 1) - 1) / 2;
  return values.empty() ? T() : NthValue(std::move(values), middle);
}

}  // namespace weft

#endif  // WEFT_BASE_MEDIAN_H_
