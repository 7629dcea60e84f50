#include "topology/ecmp/learn.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr size_t kPortsToFindConstantHops = 16;
constexpr int kCalibrationProbes = 16;  // of round-trip times with and without load

absl::Status Check(const LearnOptions& options) {
  auto bad = [](absl::string_view what, int64_t value) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning paths: ", what, " ", value, " is too small; at least 1"));
  };
  if (options.ports.empty()) return bad("number of ports", 0);
  if (options.ttl_max < 1) return bad("ttl_max", options.ttl_max);
  if (options.lead < 1) return bad("lead", options.lead);
  if (options.tries < 1) return bad("tries", options.tries);
  if (options.probes_max < 1) return bad("probes_max", options.probes_max);
  return absl::OkStatus();
}

// With n ports in c classes: one more path of the same width would have been missed by all n.
double ChanceMissed(size_t ports, size_t classes) {
  double paths = static_cast<double>(classes) + 1;
  return std::pow(1 - 1 / paths, static_cast<double>(ports));
}

void Finish(LearnedPaths& out) {
  size_t known = 0;
  for (const auto& ports : out.classes) known += ports.size();
  out.missed = ChanceMissed(known, out.classes.size());
  out.linear = FitLinear(out.classes);
}

// ---- Hop by hop

class TtlLearner {
 public:
  TtlLearner(PathProber& prober, const LearnOptions& options)
      : prober_(prober), options_(options) {}

  absl::StatusOr<LearnedPaths> Learn() {
    for (uint16_t port : options_.ports) {
      if (asked_ == kPortsToFindConstantHops) FixConstantHops();
      std::vector<HopAnswer> hops;
      WEFT_ASSIGN_OR_RETURN(bool clear, Trace(port, hops));
      if (!clear) {
        out_.unknown.push_back(port);
        continue;
      }
      ++asked_;
      Enter(port, std::move(hops));
    }
    Finish(out_);
    return std::move(out_);
  }

 private:
  absl::StatusOr<bool> Trace(uint16_t port, std::vector<HopAnswer>& hops) {
    for (int ttl = 1; ttl <= options_.ttl_max; ++ttl) {
      auto at = static_cast<size_t>(ttl - 1);
      if (at < constant_.size() && constant_[at]) {
        hops.push_back(*constant_[at]);
      } else {
        WEFT_ASSIGN_OR_RETURN(std::optional<HopAnswer> answer, AskClearly(port, ttl));
        if (!answer) return false;
        hops.push_back(*answer);
      }
      if (hops.back().kind == HopAnswer::Kind::kTarget) return true;
    }
    return true;
  }

  // A router that never answers is an answer, too: after `tries` silences.
  absl::StatusOr<std::optional<HopAnswer>> AskClearly(uint16_t port, int ttl) {
    std::map<HopAnswer, int> votes;
    int silent = 0;
    for (int i = 0; i < options_.tries; ++i) {
      if (out_.probes >= options_.probes_max) return std::optional<HopAnswer>();
      ++out_.probes;
      WEFT_ASSIGN_OR_RETURN(HopAnswer answer, prober_.Ask(port, ttl));
      if (answer.kind == HopAnswer::Kind::kSilent) {
        ++silent;
        continue;
      }
      int own = ++votes[answer], other = 0;
      for (const auto& [voted, count] : votes) {
        if (voted != answer) other = std::max(other, count);
      }
      if (own - other >= options_.lead) return std::optional<HopAnswer>(answer);
    }
    if (silent == options_.tries) return std::optional<HopAnswer>(HopAnswer());
    return std::optional<HopAnswer>();
  }

  void FixConstantHops() {
    size_t shortest = out_.hops[0].size();
    for (const auto& hops : out_.hops) shortest = std::min(shortest, hops.size());
    constant_.resize(shortest);
    for (size_t at = 0; at < shortest; ++at) {
      bool same = std::all_of(out_.hops.begin(), out_.hops.end(),
                              [&](const auto& hops) { return hops[at] == out_.hops[0][at]; });
      if (same) constant_[at] = out_.hops[0][at];
    }
  }

  void Enter(uint16_t port, std::vector<HopAnswer> hops) {
    auto known = std::find(out_.hops.begin(), out_.hops.end(), hops);
    auto index = static_cast<size_t>(known - out_.hops.begin());
    if (known == out_.hops.end()) {
      out_.hops.push_back(std::move(hops));
      out_.classes.emplace_back();
    }
    out_.classes[index].push_back(port);
  }

  PathProber& prober_;
  const LearnOptions& options_;
  LearnedPaths out_;
  size_t asked_ = 0;
  std::vector<std::optional<HopAnswer>> constant_;  // by ttl - 1
};

// ---- Under load

class LoadLearner {
 public:
  LoadLearner(LoadProber& prober, const LearnOptions& options)
      : prober_(prober), options_(options) {}

  absl::StatusOr<LearnedPaths> Learn() {
    WEFT_RETURN_IF_ERROR(Calibrate());
    out_.classes.push_back({options_.ports[0]});
    for (size_t i = 1; i < options_.ports.size(); ++i) {
      WEFT_RETURN_IF_ERROR(Place(options_.ports[i]));
    }
    Finish(out_);
    return std::move(out_);
  }

 private:
  enum class Verdict { kShares, kApart, kUnclear };

  absl::StatusOr<absl::Duration> Median(absl::Span<const uint16_t> loaded) {
    std::vector<absl::Duration> times;
    for (int i = 0; i < kCalibrationProbes; ++i) {
      ++out_.probes;
      WEFT_ASSIGN_OR_RETURN(absl::Duration time, prober_.RoundTrip(options_.ports[0], loaded));
      times.push_back(time);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  // A port shares its path with itself: that is what load looks like.
  absl::Status Calibrate() {
    WEFT_ASSIGN_OR_RETURN(absl::Duration idle, Median({}));
    WEFT_ASSIGN_OR_RETURN(absl::Duration loaded, Median({options_.ports[0]}));
    if (idle == absl::InfiniteDuration() || loaded < idle * 1.5) {
      return absl::FailedPreconditionError(absl::StrCat(
          "load on port ", options_.ports[0], " takes its own round-trip time from ",
          absl::FormatDuration(idle), " to ", absl::FormatDuration(loaded),
          " only: too little to tell paths apart; is the load enough to fill a link?"));
    }
    threshold_ = loaded == absl::InfiniteDuration() ? idle * 4 : idle + (loaded - idle) / 2;
    return absl::OkStatus();
  }

  // A packet that is lost under load met a full queue.
  absl::StatusOr<Verdict> Shares(uint16_t port, absl::Span<const uint16_t> loaded) {
    int lead = 0;
    for (int i = 0; i < options_.tries; ++i) {
      if (out_.probes >= options_.probes_max) return Verdict::kUnclear;
      ++out_.probes;
      WEFT_ASSIGN_OR_RETURN(absl::Duration time, prober_.RoundTrip(port, loaded));
      lead += time > threshold_ ? 1 : -1;
      if (lead >= options_.lead) return Verdict::kShares;
      if (lead <= -options_.lead) return Verdict::kApart;
    }
    return Verdict::kUnclear;
  }

  // Load on one port of every class at once tells whether the class is new; then on ever smaller
  // halves of them.
  absl::Status Place(uint16_t port) {
    std::vector<uint16_t> loaded;
    for (const auto& ports : out_.classes) loaded.push_back(ports[0]);
    size_t first = 0, count = loaded.size();
    WEFT_ASSIGN_OR_RETURN(Verdict any, Shares(port, loaded));
    if (any == Verdict::kApart) {
      out_.classes.push_back({port});
      return absl::OkStatus();
    }
    while (any == Verdict::kShares && count > 1) {
      size_t half = count / 2;
      absl::Span<const uint16_t> part = absl::MakeConstSpan(loaded).subspan(first, half);
      WEFT_ASSIGN_OR_RETURN(Verdict in_half, Shares(port, part));
      if (in_half == Verdict::kUnclear) any = in_half;
      if (in_half == Verdict::kApart) first += half;
      count = in_half == Verdict::kApart ? count - half : half;
    }
    if (any == Verdict::kUnclear) {
      out_.unknown.push_back(port);
    } else {
      out_.classes[first].push_back(port);
    }
    return absl::OkStatus();
  }

  LoadProber& prober_;
  const LearnOptions& options_;
  LearnedPaths out_;
  absl::Duration threshold_;
};

// ---- Linear structure

// Rows with distinct highest bits, each cleared from the others.
struct Space {
  std::vector<uint16_t> rows;

  uint16_t Reduce(uint16_t value) const {
    for (uint16_t row : rows) {
      if (value & std::bit_floor(row)) value ^= row;
    }
    return value;
  }
  bool Add(uint16_t value) {
    value = Reduce(value);
    if (value == 0) return false;
    for (uint16_t& row : rows) {
      if (row & std::bit_floor(value)) row ^= value;
    }
    rows.push_back(value);
    std::sort(rows.rbegin(), rows.rend());
    return true;
  }
};

}  // namespace

absl::StatusOr<LearnedPaths> LearnByTtl(PathProber& prober, const LearnOptions& options) {
  WEFT_RETURN_IF_ERROR(Check(options));
  return TtlLearner(prober, options).Learn();
}

absl::StatusOr<LearnedPaths> LearnByLoad(LoadProber& prober, const LearnOptions& options) {
  WEFT_RETURN_IF_ERROR(Check(options));
  return LoadLearner(prober, options).Learn();
}

uint16_t LinearPorts::Reduce(uint16_t port) const { return Space{basis_}.Reduce(port); }

std::optional<size_t> LinearPorts::ClassOf(uint16_t port) const {
  auto found = class_of_.find(Reduce(port));
  if (found == class_of_.end()) return std::nullopt;
  return found->second;
}

std::optional<LinearPorts> FitLinear(const std::vector<std::vector<uint16_t>>& classes) {
  constexpr int kSurplusMin = 8;
  if (classes.empty()) return std::nullopt;
  Space within, all;
  int surplus = 0;  // differences that said nothing new: each had its chance to contradict
  for (const auto& ports : classes) {
    for (uint16_t port : ports) {
      all.Add(port ^ classes[0][0]);
      if (port != ports[0] && !within.Add(port ^ ports[0])) ++surplus;
    }
  }
  if (surplus < kSurplusMin || within.rows.size() == all.rows.size()) return std::nullopt;
  LinearPorts out;
  out.basis_ = within.rows;
  for (size_t index = 0; index < classes.size(); ++index) {
    for (uint16_t port : classes[index]) {
      auto [known, _] = out.class_of_.try_emplace(out.Reduce(port), index);
      if (known->second != index) return std::nullopt;
    }
  }
  return out;
}

}  // namespace weft::topology
