#include "trainer/data/sample_blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {
namespace {

// Samples by which a dataset's part of a period may differ from a whole number: after 1e8 periods
// the dataset is one sample from its share.
constexpr double kRoundedMost = 1e-8;

// Whether every share of `period` samples is a whole number of them. std::fma: the same on every
// machine, whatever the compiler makes of a product and a difference.
bool IsWhole(const std::vector<double>& shares, double period) {
  return std::all_of(shares.begin(), shares.end(), [period](double share) {
    return std::fabs(std::fma(share, period, -std::round(share * period))) <= kRoundedMost;
  });
}

// The samples of a period that come from each dataset, and add up to it. None is 0, as no share is
// below 2 / kPeriodMost.
std::vector<int64_t> PartsOf(const std::vector<double>& shares) {
  auto period = static_cast<int64_t>(shares.size());
  while (period < SampleBlend::kPeriodMost && !IsWhole(shares, static_cast<double>(period))) {
    ++period;
  }
  std::vector<int64_t> parts;
  double share_before = 0;
  int64_t before = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    share_before += shares[i];
    const bool is_last = i + 1 == shares.size();
    const int64_t end = is_last ? period : std::llround(share_before * static_cast<double>(period));
    parts.push_back(end - std::exchange(before, end));
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleBlend>> SampleBlend::Make(
    std::vector<std::shared_ptr<const SampleStream>> streams, absl::Span<const double> weights) {
  WEFT_CHECK(!streams.empty() && streams.size() == weights.size(),
             streams.size() << " datasets, " << weights.size() << " weights");
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> shares;
  for (size_t i = 0; i < weights.size(); ++i) {
    WEFT_CHECK(weights[i] > 0 && std::isfinite(sum), "weight " << weights[i] << " of " << sum);
    WEFT_CHECK(streams[i]->seq_length() == streams[0]->seq_length(),
               "samples of " << streams[i]->seq_length() << " and of " << streams[0]->seq_length());
    shares.push_back(weights[i] / sum);
    if (shares.back() >= 2.0 / kPeriodMost) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "dataset ", streams[i]->dataset().prefix(), ": its weight ", weights[i], " is a share of ",
        shares.back(), " of the samples; ", 2.0 / kPeriodMost, " is the least"));
  }
  return std::unique_ptr<SampleBlend>(new SampleBlend(std::move(streams), PartsOf(shares)));
}

SampleBlend::SampleBlend(std::vector<std::shared_ptr<const SampleStream>> streams,
                         std::vector<int64_t> parts)
    : streams_(std::move(streams)), parts_(std::move(parts)) {
  const int64_t period = std::accumulate(parts_.begin(), parts_.end(), int64_t{0});
  // Samples are counted in units of 1 / (scale x period): all numbers are whole, and the largest
  // product, scale x period x period, is below 2e18.
  const int64_t scale = std::max<int64_t>(1, 2 * static_cast<int64_t>(parts_.size()) - 2);
  const int64_t shortfall_most = (scale - 1) * period;
  std::vector<int64_t> shortfalls(parts_.size());
  std::vector<uint32_t> drawn(parts_.size());
  turns_.reserve(static_cast<size_t>(period));
  for (int64_t turn = 0; turn < period; ++turn) {
    size_t next = parts_.size();  // none yet
    for (size_t i = 0; i < parts_.size(); ++i) {
      shortfalls[i] += scale * parts_[i];
      if (shortfalls[i] < period) continue;
      // (shortfall_most - shortfalls) / parts, the samples until it is reached, without division.
      if (next == parts_.size() || (shortfall_most - shortfalls[i]) * parts_[next] <
                                       (shortfall_most - shortfalls[next]) * parts_[i]) {
        next = i;
      }
    }
    WEFT_CHECK(next < parts_.size(), "no dataset is due at sample " << turn << " of " << period);
    shortfalls[next] -= scale * period;
    turns_.push_back({static_cast<uint32_t>(next), drawn[next]++});
  }
}

SampleBlend::Draw SampleBlend::DrawOf(int64_t global_sample) const {
  const Turn& turn = turns_[static_cast<size_t>(global_sample % period())];
  return {turn.dataset, global_sample / period() * parts_[turn.dataset] + turn.before};
}

absl::Status SampleBlend::Read(int64_t global_sample, absl::Span<int32_t> tokens) const {
  if (global_sample < 0) return streams_.front()->Read(global_sample, tokens);  // refuses it
  const Draw draw = DrawOf(global_sample);
  return streams_[draw.dataset]->Read(draw.sample, tokens);
}

}  // namespace weft::train
