// The parameters that a rank holds, in two sets where there are experts: those of the experts are
// the same on fewer ranks than the others (context x data, not x expert), so that each set has its
// own shards, reductions and gathers (sharded.h). Takes and numbers parameters as one list. Used by
// one thread.
#ifndef WEFT_TRAINER_PARALLEL_PARAMETER_SETS_H_
#define WEFT_TRAINER_PARALLEL_PARAMETER_SETS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "trainer/parallel/sharded.h"

namespace weft::train {

class ParameterSets final : public GradientSink {
 public:
  // As ShardedParameters.
  ParameterSets(std::vector<ParameterSpec> parameters,
                const std::vector<std::string>& all_parameters, const ShardedOptions& options,
                const OptimizerConfig& optimizer, const ParallelGroups* groups, Trace* trace);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }  // views, for the model
  // One or two; their stores' slices are to be filled before Publish, and to be saved.
  const std::vector<ShardedParameters*>& sets() const { return pointers_; }
  const Optimizer& optimizer() const { return pointers_[0]->optimizer(); }
  bool ComesAndGoes() const;
  int64_t changes() const;  // as ParameterGatherer's, of all sets

  absl::Status Publish();
  absl::Status Enter(int unit, bool backward);
  void Leave(int unit);
  void LeaveAll();
  absl::Status WaitAll();
  void BeginStep();
  GradientTarget Begin(int parameter) override;
  void End(int parameter) override;
  bool TakesAnyOrder() const override;
  absl::Status FinishGradients();
  double SumSquares() const;
  absl::Status Update(const OptimizerStep& step);

 private:
  struct Set {
    std::unique_ptr<ShardedParameters> sharded;
    std::vector<int> numbers;  // of its parameters, in the whole list
    bool Has(int unit) const { return unit < sharded->store().units(); }
  };
  const std::vector<ParameterSpec> parameters_;
  std::vector<Set> sets_;
  std::vector<ShardedParameters*> pointers_;
  std::vector<std::pair<size_t, int>> places_;  // of each parameter: set, number there
  std::vector<at::Tensor> tensors_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_PARAMETER_SETS_H_
