#include "trainer/loop/peak.h"

#include <ATen/ATen.h>

#include <array>

#include "base/clock.h"
#include "base/status.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"

namespace weft::train {

absl::StatusOr<double> PeakFlops(const TrainConfig& config, const GemmLibraries& libraries,
                                 at::Device device, double known, Group& group) {
  if (config.peak_tflops > 0) return config.peak_tflops * 1e12 * group.size();
  std::array<double, 2> before = {known, known > 0 ? 1.0 : 0.0};
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(before)));
  if (before[1] > 0) return before[0] / before[1];
  const int64_t size = device.is_cpu() ? 1024 : 8192;
  constexpr int64_t kDuration = 200'000'000;  // ns
  const at::TensorOptions options = at::TensorOptions(TypeOf(config.precision)).device(device);
  auto multiply = [&](const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
    Multiply(libraries, a, b, c);
    if (!device.is_cpu()) c[0][0].item();  // until it is done
  };
  at::Tensor a = at::ones({size, size}, options);
  at::Tensor b = at::ones({size, size}, options);
  at::Tensor c = at::empty({size, size}, options);
  multiply(a, b, c);
  std::array<double, 1> flops = {0};
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(flops)));  // all begin together
  int64_t start = SystemClock::Nanoseconds();
  int64_t now = start;
  while (now - start < kDuration) {
    multiply(a, b, c);
    flops[0] += 2.0 * static_cast<double>(size * size * size);
    now = SystemClock::Nanoseconds();
  }
  flops[0] /= static_cast<double>(now - start) * 1e-9;
  WEFT_RETURN_IF_ERROR(group.Sum(absl::MakeSpan(flops)));
  return flops[0];
}

}  // namespace weft::train
