#include "trainer/parallel/parameter_sets.h"

#include <algorithm>

#include "base/status.h"
#include "trainer/profile/work_time.h"

namespace weft::train {

ParameterSets::ParameterSets(std::vector<ParameterSpec> parameters,
                             const std::vector<std::string>& all_parameters,
                             const ShardedOptions& options, const OptimizerConfig& optimizer,
                             const ParallelGroups* groups, Trace* trace)
    : parameters_(std::move(parameters)),
      places_(parameters_.size()),
      tensors_(parameters_.size()) {
  for (bool experts : {false, true}) {
    Set set;
    std::vector<ParameterSpec> specs;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (parameters_[i].is_expert != experts) continue;
      places_[i] = {sets_.size(), static_cast<int>(specs.size())};
      set.numbers.push_back(static_cast<int>(i));
      specs.push_back(parameters_[i]);
    }
    // A stage that has no layer's second half holds no expert. Its set is empty, as an optimizer's
    // step may add up over all ranks (LAMB's).
    const bool has_groups = !experts || groups->experts != nullptr;
    WEFT_CHECK(has_groups || specs.empty(), "experts without groups of theirs");
    if (!has_groups) continue;
    set.sharded =
        std::make_unique<ShardedParameters>(std::move(specs), all_parameters, options, optimizer,
                                            experts ? groups->experts.get() : groups, trace);
    for (size_t i = 0; i < set.numbers.size(); ++i) {
      tensors_[static_cast<size_t>(set.numbers[i])] = set.sharded->store().tensors()[i];
    }
    pointers_.push_back(set.sharded.get());
    sets_.push_back(std::move(set));
  }
}

bool ParameterSets::ComesAndGoes() const {
  return std::any_of(sets_.begin(), sets_.end(),
                     [](const Set& set) { return set.sharded->store().ComesAndGoes(); });
}

int64_t ParameterSets::changes() const {
  int64_t changes = 0;
  for (const Set& set : sets_) {
    changes += std::as_const(*set.sharded).gatherer().changes();
  }
  return changes;
}

absl::Status ParameterSets::Publish() {
  for (Set& set : sets_) WEFT_RETURN_IF_ERROR(set.sharded->Publish());
  return absl::OkStatus();
}

absl::Status ParameterSets::Enter(int unit, bool backward) {
  for (Set& set : sets_) {
    if (set.Has(unit)) WEFT_RETURN_IF_ERROR(set.sharded->gatherer().Enter(unit, backward));
  }
  return absl::OkStatus();
}

void ParameterSets::Leave(int unit) {
  for (Set& set : sets_) {
    if (set.Has(unit)) set.sharded->gatherer().Leave(unit);
  }
}

void ParameterSets::LeaveAll() {
  for (Set& set : sets_) set.sharded->gatherer().LeaveAll();
}

absl::Status ParameterSets::WaitAll() {
  for (Set& set : sets_) WEFT_RETURN_IF_ERROR(set.sharded->gatherer().WaitAll());
  return absl::OkStatus();
}

void ParameterSets::BeginStep() {
  for (Set& set : sets_) set.sharded->gradients().BeginStep();
}

GradientTarget ParameterSets::Begin(int parameter) {
  const auto [set, number] = places_[static_cast<size_t>(parameter)];
  return sets_[set].sharded->gradients().Begin(number);
}

void ParameterSets::End(int parameter) {
  const auto [set, number] = places_[static_cast<size_t>(parameter)];
  sets_[set].sharded->gradients().End(number);
}

bool ParameterSets::TakesAnyOrder() const { return sets_[0].sharded->gradients().TakesAnyOrder(); }

absl::Status ParameterSets::FinishGradients() {
  for (Set& set : sets_) WEFT_RETURN_IF_ERROR(set.sharded->gradients().Finish());
  return absl::OkStatus();
}

double ParameterSets::SumSquares() const {
  const WorkScope scope(Work::kOptimizer);
  double sum = 0;
  for (const Set& set : sets_) sum += set.sharded->gradients().SumSquares();
  return sum;
}

absl::Status ParameterSets::Update(const OptimizerStep& step) {
  const WorkScope scope(Work::kOptimizer);
  for (Set& set : sets_) WEFT_RETURN_IF_ERROR(set.sharded->Update(step));
  return absl::OkStatus();
}

}  // namespace weft::train
