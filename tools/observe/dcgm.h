// What dcgm-exporter's page says of this host's GPUs, in DCGM's names: clocks, temperature, errors.
#ifndef WEFT_TOOLS_OBSERVE_DCGM_H_
#define WEFT_TOOLS_OBSERVE_DCGM_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/observe/http.h"

namespace weft::observe {

struct DeviceValue {
  int device = 0;    // the exporter's label "gpu"
  std::string name;  // "DCGM_FI_DEV_SM_CLOCK"
  double value = 0;
};
// A page's values, in Prometheus's text format, that a rule goes by (DCGM's dcgm_fields.h).
// What a device does not support (DCGM's blank values, 2^63 - 16 and above) is left out.
std::vector<DeviceValue> ParseDcgmPage(absl::string_view page);

// The device that a process computes on, by CUDA_VISIBLE_DEVICES and LOCAL_RANK in its
// /proc/PID/environ, lines that end with a zero; -1: they do not say.
int DeviceOfEnvironment(absl::string_view environment);

class DcgmExporter {
 public:
  explicit DcgmExporter(HttpAddress address) : address_(std::move(address)) {}
  // The page's newest values. Asks every two seconds, and waits for at most a fifth of one; while
  // the exporter does not answer, every half minute. That is said once, and again after an answer.
  const std::vector<DeviceValue>& Read(absl::Time now);

 private:
  const HttpAddress address_;
  absl::Time next_ = absl::InfinitePast();
  bool answers_ = true;
  std::vector<DeviceValue> values_;
};

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_DCGM_H_
