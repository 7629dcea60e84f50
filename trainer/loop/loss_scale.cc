#include "trainer/loop/loss_scale.h"

#include <algorithm>
#include <vector>

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
  if (!is_finite) ++left_out_;
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

std::string LossScale::ToText() const {
  return absl::StrFormat("%.17g %d %d", value_, finite_steps_, left_out_);
}

absl::Status LossScale::FromText(absl::string_view text) {
  std::vector<absl::string_view> fields = absl::StrSplit(text, ' ');
  if (fields.size() == 2) fields.push_back("0");  // of before steps left out were counted
  double value = 0;
  int64_t finite_steps = 0, left_out = 0;
  if (fields.size() != 3 || !absl::SimpleAtod(fields[0], &value) ||
      !absl::SimpleAtoi(fields[1], &finite_steps) || !absl::SimpleAtoi(fields[2], &left_out) ||
      !(value >= 1) || finite_steps < 0 || left_out < 0) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is no loss scale"));
  }
  left_out_ = left_out;
  if (!moves_) return absl::OkStatus();
  value_ = value;
  finite_steps_ = finite_steps;
  return absl::OkStatus();
}

}  // namespace weft::train
