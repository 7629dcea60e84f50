#include "trainer/loop/loss_scale.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace weft::train {
namespace {

constexpr double kMost = 0x1p40;

}  // namespace

LossScale::LossScale(const TrainConfig& config)
    : moves_(config.precision == Precision::kFp16),
      steps_until_growth_(config.loss_scale_steps),
      value_(moves_ ? config.loss_scale : 1) {}

bool LossScale::Adapt(bool is_finite) {
  if (!moves_) return false;
  if (!is_finite) {
    const bool was_above = value_ > 1;
    value_ = std::max(1.0, value_ / 2);
    finite_steps_ = 0;
    return was_above;
  }
  if (++finite_steps_ >= steps_until_growth_) {
    value_ = std::min(kMost, value_ * 2);
    finite_steps_ = 0;
  }
  return true;
}

std::string LossScale::ToText() const { return absl::StrFormat("%.17g %d", value_, finite_steps_); }

absl::Status LossScale::FromText(absl::string_view text) {
  if (!moves_) return absl::OkStatus();
  const std::pair<absl::string_view, absl::string_view> fields = absl::StrSplit(text, ' ');
  if (!absl::SimpleAtod(fields.first, &value_) ||
      !absl::SimpleAtoi(fields.second, &finite_steps_) || !(value_ >= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no loss scale"));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
