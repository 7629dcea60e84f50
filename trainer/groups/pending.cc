#include "trainer/groups/pending.h"

#include <memory>
#include <utility>
#include <vector>

namespace weft::train {

void LeftTensors::Keep(collectives::WorkPtr work, std::vector<at::Tensor> tensors) {
  std::erase_if(kept_, [](const Kept& kept) { return kept.work != nullptr && kept.work->done(); });
  kept_.push_back({std::move(work), std::move(tensors)});
}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this == &other) return *this;
  std::destroy_at(this);
  return *std::construct_at(this, std::move(other));
}

Pending::~Pending() {
  if (left != nullptr && !done()) left->Keep(std::move(work), std::move(tensors));
}

}  // namespace weft::train
