#include "trainer/loop/validation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace weft::train {

absl::StatusOr<ValidationLoss> MeasureValidation(const TrainConfig& config, const RunData& data,
                                                 Stepper& stepper) {
  ValidationLoss result;
  for (size_t i = 0; i < data.validation.size(); ++i) {
    const SampleStream& stream = *data.validation[i];
    const double share = config.data.shares[i];
    const int64_t whole = stream.samples_per_epoch() / config.global_batch;
    const int64_t wanted = std::llround(share * static_cast<double>(config.validation_batches));
    WEFT_ASSIGN_OR_RETURN(
        const double loss,
        stepper.Validate(stream, std::clamp<int64_t>(whole, 1, std::max<int64_t>(1, wanted))));
    result.mean += share * loss;
    if (data.validation.size() > 1) result.by_dataset.emplace_back(config.data.prefixes[i], loss);
  }
  return result;
}

}  // namespace weft::train
