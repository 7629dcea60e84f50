// The optimizers behind one interface: names of their states, the scope of what an update needs,
// and the update itself of a stretch of a parameter. Where stretches lie and what crosses the ranks
// is the business of trainer/parallel/sharded_update.h.
//
//   std::unique_ptr<Optimizer> optimizer = MakeOptimizer(config);
//   optimizer->Update(step, stretch);                     // adamw, sgd, lion
//
//   NormRule* norms = optimizer->norms();                 // lamb
//   ParameterNorms mine = norms->Measure(step, stretch);  // to be added up over the parameter
//   norms->Apply(step, stretch, whole);
//
//   MatrixRule* matrices = optimizer->matrices();         // muon, of matrices of blocks
//   matrices->Direction(step, stretch, direction);        // then the whole matrix is put together
//   matrices->Orthogonalize(whole);
//   matrices->Apply(step, stretch, rows, columns, direction);
//
// Values and states are fp32; gradients fp32, bf16 or fp16. All loops run over flat buffers, one
// pass each. Used by one thread. An optimizer keeps nothing between calls but its hyper-parameters.
#ifndef WEFT_TRAINER_OPTIMIZER_OPTIMIZER_H_
#define WEFT_TRAINER_OPTIMIZER_OPTIMIZER_H_

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/config.h"
#include "trainer/kernels/kernels.h"

namespace weft::train {

// What changes from step to step.
struct OptimizerStep {
  int64_t step = 0;      // from 1
  int64_t left_out = 0;  // steps before it that were not finite, and updated nothing
  double learning_rate = 0;
  double gradient_scale = 1;  // gradients are multiplied by it: clipping, loss scale
};

inline constexpr int kOptimizerStatesMost = 2;

// One value for each element of a parameter, fp32. A checkpoint has it as "PREFIX.NAME.PARAMETER",
// with state_prefix().
struct OptimizerState {
  absl::string_view name;
  bool of_matrices = true;  // of those for which Optimizer::matrices() is the rule
  bool of_others = true;
};

// A stretch of one parameter, or of neighbours that are treated alike, on this rank.
struct Stretch {
  int64_t elements = 0;
  bool decays = false;
  float* values = nullptr;
  const void* gradient = nullptr;
  Precision gradient_type = Precision::kFp32;
  std::array<float*, kOptimizerStatesMost> states = {};     // in the order of Optimizer::states()
  const kernels::KernelTable* table = &kernels::Kernels();  // of the memory's device
};

// Sums of squares.
struct ParameterNorms {
  double values = 0;
  double direction = 0;
};

// The rule of an optimizer whose step needs norms over whole parameters.
class NormRule {
 public:
  virtual ~NormRule() = default;
  // Moves the states on. Returns the stretch's part of the sums.
  virtual ParameterNorms Measure(const OptimizerStep& step, const Stretch& stretch) const = 0;
  // `whole`: the sums over all of the parameter.
  virtual void Apply(const OptimizerStep& step, const Stretch& stretch,
                     const ParameterNorms& whole) const = 0;
};

// The rule of an optimizer whose step needs whole matrices.
class MatrixRule {
 public:
  virtual ~MatrixRule() = default;
  // Moves the states on; `direction` [elements] gets what becomes part of the whole matrix.
  virtual void Direction(const OptimizerStep& step, const Stretch& stretch,
                         float* direction) const = 0;
  // In place. matrix: fp32 [rows, columns].
  virtual void Orthogonalize(const at::Tensor& matrix) const = 0;
  // `direction` [elements]: the stretch's part of the orthogonal matrix [rows, columns].
  virtual void Apply(const OptimizerStep& step, const Stretch& stretch, int64_t rows,
                     int64_t columns, const float* direction) const = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual absl::string_view name() const = 0;  // of the key optimizer.name
  virtual absl::string_view state_prefix() const { return name(); }
  // kOptimizerStatesMost at most.
  virtual absl::Span<const OptimizerState> states() const = 0;
  // Null: an update needs no norms; else Update is not called.
  virtual const NormRule* norms() const { return nullptr; }
  // Null: an update needs no whole matrices; else Update is not called for matrices of blocks.
  virtual const MatrixRule* matrices() const { return nullptr; }
  virtual void Update(const OptimizerStep& step, const Stretch& stretch) const = 0;
};

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config);

// Calls body(kernels, gradient) with the kernels and the pointer of the gradient's type.
template <typename Body>
void WithGradient(const Stretch& stretch, Body body) {
  switch (stretch.gradient_type) {
    case Precision::kFp32:
      return body(stretch.table->f32, static_cast<const float*>(stretch.gradient));
    case Precision::kBf16:
      return body(stretch.table->bf16, static_cast<const kernels::Bf16*>(stretch.gradient));
    case Precision::kFp16:
      return body(stretch.table->fp16, static_cast<const kernels::Fp16*>(stretch.gradient));
  }
}

// Each in a file of its own.
std::unique_ptr<Optimizer> MakeAdamW(const OptimizerConfig& config);
std::unique_ptr<Optimizer> MakeLamb(const OptimizerConfig& config);
std::unique_ptr<Optimizer> MakeSgd(const OptimizerConfig& config);
std::unique_ptr<Optimizer> MakeLion(const OptimizerConfig& config);
std::unique_ptr<Optimizer> MakeMuon(const OptimizerConfig& config);

// AdamW's numbers at a step; `bias_correction` false: moments are taken as they are.
kernels::AdamW AdamWAt(const OptimizerConfig& config, const OptimizerStep& step, bool decays,
                       bool bias_correction);

}  // namespace weft::train

#endif  // WEFT_TRAINER_OPTIMIZER_OPTIMIZER_H_
