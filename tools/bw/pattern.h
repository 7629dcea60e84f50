// Data whose every collective's result can be said in advance, to the bit.
//
// Element i of rank r's input is a small whole number that depends on r and on i modulo a prime
// period, so that no chunk in the wrong place looks right. Sums of them are exact in every number
// type, so the order in which an algorithm adds does not matter.
#ifndef WEFT_TOOLS_BW_PATTERN_H_
#define WEFT_TOOLS_BW_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/data_type.h"

namespace weft::bw {

class Pattern {
 public:
  Pattern(collectives::DataType type, collectives::ReduceOp op, int ranks);

  // Writes elements 0 to count of that rank's input.
  void Write(std::byte* to, int rank, size_t count) const;
  // How many of `count` elements are not the reduction of what `ranks` have from element `first`
  // on; one rank: what it has.
  int64_t Wrong(const std::byte* data, const std::vector<int>& ranks, size_t first,
                size_t count) const;

 private:
  std::vector<std::byte> PeriodOf(int rank) const;
  std::vector<std::byte> Expected(const std::vector<int>& ranks) const;

  const collectives::DataType type_;
  const collectives::ReduceOp op_;
  const size_t element_;  // bytes
  const int ranks_;
  const int values_;  // the elements are from 0 (a product's: from 1) to this, exclusive
  const int stride_;  // of so many elements of a rank one is above 0: bounds the sum of many ranks
};

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_PATTERN_H_
