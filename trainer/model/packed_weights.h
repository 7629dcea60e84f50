// Weights as the products of our own loops read them (kernels/gemm.h), for products that come again
// before the weights change: those of a step's micro-batches, of a loss in chunks of rows.
//
// A copy is packed by the first product after a change, its memory is kept. y = x * weight^T and
// dx = dy * weight read other orders: a copy each, both of the weight's size in the type that is
// multiplied (fp32 where the CPU has no products of bf16). Products give the same bits with and
// without copies. Used by one thread.
#ifndef WEFT_TRAINER_MODEL_PACKED_WEIGHTS_H_
#define WEFT_TRAINER_MODEL_PACKED_WEIGHTS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "base/units.h"
#include "trainer/kernels/gemm.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"

namespace weft::train {

// How often the parameters have changed.
using ChangeCount = std::function<int64_t()>;

class PackedWeight {
 public:
  explicit PackedWeight(const ChangeCount* changes) : changes_(*changes) {}

  // b: [k, n], the same weight or its transpose in each call. `split` as kernels::GemmSplit has it.
  template <typename T>
  const uint32_t* Panels(const kernels::GemmOperand<T>& b, int64_t n, int64_t k, int64_t split);

 private:
  const ChangeCount& changes_;
  at::Tensor memory_;
  int64_t split_ = -1, packed_at_ = -1;
};

// Which weights of a model are kept packed.
enum class PackedPart : uint8_t {
  kNone,
  kHead,  // the output projection
  kAll,   // and the matrices of the layers
};

class PackedWeights {
 public:
  explicit PackedWeights(ChangeCount changes) : changes_(std::move(changes)) {}
  PackedWeights(const PackedWeights&) = delete;  // copies refer to changes_
  PackedWeights& operator=(const PackedWeights&) = delete;

  // The copy of a parameter for the products of a pass, kForward or kInputGradient.
  PackedWeight& Of(int parameter, GemmPass pass) {
    return weights_.try_emplace({parameter, pass}, &changes_).first->second;
  }

 private:
  const ChangeCount changes_;
  std::map<std::pair<int, GemmPass>, PackedWeight> weights_;
};

// What the copies of `part` take, of the products that `libraries` gives to our own loops.
Bytes PackedBytes(const ModelConfig& config, const ModelPart& part, PackedPart packed,
                  Precision precision, const GemmLibraries& libraries);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_PACKED_WEIGHTS_H_
