#include "trainer/optimizer/optimizer.h"

namespace weft::train {

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config) {
  switch (config.name) {
    case OptimizerKind::kLamb:
      return MakeLamb(config);
    case OptimizerKind::kSgd:
      return MakeSgd(config);
    case OptimizerKind::kLion:
      return MakeLion(config);
    case OptimizerKind::kMuon:
      return MakeMuon(config);
    case OptimizerKind::kAdamW:
      break;
  }
  return MakeAdamW(config);
}

}  // namespace weft::train
