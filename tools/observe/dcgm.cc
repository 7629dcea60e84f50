#include "tools/observe/dcgm.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/log.h"

namespace weft::observe {
namespace {

constexpr std::array<absl::string_view, 6> kNames = {
    "DCGM_FI_DEV_SM_CLOCK",          "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_XID_ERRORS",        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"};
constexpr double kBlank = 9.2e18;
constexpr size_t kValuesMax = 1024;

}  // namespace

std::vector<DeviceValue> ParseDcgmPage(absl::string_view page) {
  std::vector<DeviceValue> values;
  for (absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
    const size_t labels = line.find('{'), end = line.rfind('}');
    if (labels == absl::string_view::npos || end == absl::string_view::npos || end < labels) {
      continue;
    }
    DeviceValue value{.name = std::string(line.substr(0, labels))};
    if (std::find(kNames.begin(), kNames.end(), value.name) == kNames.end()) continue;
    const absl::string_view of = line.substr(labels, end - labels);
    const size_t gpu = std::min(of.find("{gpu=\""), of.find(",gpu=\""));
    if (gpu == absl::string_view::npos) continue;
    const absl::string_view number = of.substr(gpu + 6);
    const std::vector<absl::string_view> words =
        absl::StrSplit(line.substr(end + 1), ' ', absl::SkipEmpty());
    if (!absl::SimpleAtoi(number.substr(0, number.find('"')), &value.device) || words.empty() ||
        !absl::SimpleAtod(words[0], &value.value) || !(value.value < kBlank)) {
      continue;
    }
    values.push_back(std::move(value));
    if (values.size() == kValuesMax) break;
  }
  return values;
}

int DeviceOfEnvironment(absl::string_view environment) {
  absl::string_view visible;
  int local_rank = -1;
  bool is_restricted = false;
  for (absl::string_view word : absl::StrSplit(environment, '\0', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, "CUDA_VISIBLE_DEVICES=")) {
      visible = word;
      is_restricted = true;
    } else if (absl::ConsumePrefix(&word, "LOCAL_RANK=") && !absl::SimpleAtoi(word, &local_rank)) {
      local_rank = -1;
    }
  }
  if (!is_restricted) return local_rank;
  const std::vector<absl::string_view> devices = absl::StrSplit(visible, ',', absl::SkipEmpty());
  const size_t at = devices.size() == 1 ? 0 : static_cast<size_t>(std::max(local_rank, 0));
  int device = -1;
  const bool is_known = at < devices.size() && (devices.size() == 1 || local_rank >= 0);
  return is_known && absl::SimpleAtoi(devices[at], &device) && device >= 0 ? device : -1;
}

const std::vector<DeviceValue>& DcgmExporter::Read(absl::Time now) {
  if (now < next_) return values_;
  absl::StatusOr<std::string> page =
      HttpFetch(address_, {.path = "/metrics", .patience = absl::Milliseconds(200)});
  if (!page.ok() && answers_) {
    WEFT_LOG_WARN("dcgm-exporter: ", page.status().message(), "; it is asked again now and then");
  }
  answers_ = page.ok();
  next_ = now + (answers_ ? absl::Seconds(2) : absl::Seconds(30));
  if (answers_) values_ = ParseDcgmPage(*page);
  return values_;
}

}  // namespace weft::observe
