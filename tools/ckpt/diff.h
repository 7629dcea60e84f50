// weft-ckpt diff: two checkpoints tensor by tensor. Whole tensors are compared, so that it does not
// matter over how many ranks, and how, each of the two was cut.
#ifndef WEFT_TOOLS_CKPT_DIFF_H_
#define WEFT_TOOLS_CKPT_DIFF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/reader.h"

namespace weft::ckpt {

enum class Comparison : uint8_t {
  kEqual,  // to the bit
  kValues,
  kShape,
  kType,
  kOnlyInFirst,
  kOnlyInSecond,
};

struct TensorDifference {
  std::string name;
  Comparison comparison = Comparison::kEqual;
  std::string first, second;  // kShape, kType: what each has
  // kValues:
  int64_t elements = 0;
  int64_t differing = 0;    // elements that are not equal to the bit
  double max_absolute = 0;  // infinity: a NaN or an infinity on one side
  double max_relative = 0;  // |a - b| / max(|a|, |b|)
};

// In the order of the first, then what the second has alone. Shapes are compared where both
// manifests have them, else numbers of elements. An error: a shard of one of them is damaged or
// cannot be read.
absl::StatusOr<std::vector<TensorDifference>> Diff(const train::CheckpointReader& first,
                                                   const train::CheckpointReader& second);

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_DIFF_H_
