#include "trainer/loop/peak.h"

#include <ATen/ATen.h>

#include <array>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"

namespace weft::train {

absl::StatusOr<double> PeakFlops(const TrainConfig& config, KernelLibrary library, Group& group) {
  if (config.peak_tflops > 0) return config.peak_tflops * 1e12 * group.size();
  constexpr int64_t kSize = 1024;
  constexpr int64_t kDuration = 200'000'000;  // ns
  auto type = TypeOf(config.precision);
  at::Tensor a = at::ones({kSize, kSize}, type);
  at::Tensor b = at::ones({kSize, kSize}, type);
  at::Tensor c = at::empty({kSize, kSize}, type);
  Multiply(library, a, b, c);
  std::array<double, 1> flops = {0};
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(flops)));  // all begin together
  int64_t start = SystemClock::Nanoseconds();
  int64_t now = start;
  while (now - start < kDuration) {
    Multiply(library, a, b, c);
    flops[0] += 2.0 * kSize * kSize * kSize;
    now = SystemClock::Nanoseconds();
  }
  flops[0] /= static_cast<double>(now - start) * 1e-9;
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(flops)));
  return flops[0];
}

}  // namespace weft::train
