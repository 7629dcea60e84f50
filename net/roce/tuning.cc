#include "net/roce/tuning.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "net/roce/adaptive_retransmission.h"

namespace weft::net {
namespace {

constexpr int64_t kRateMax = (int64_t{1} << 32) - 1;

constexpr NicParameter kParameters[] = {
    {"min_time_between_cnps", "roce_np/min_time_between_cnps", "np_min_time_between_cnps", "us",
     "receiver: least time between two CNPs of a flow (N)", 65535},
    {"cnp_dscp", "roce_np/cnp_dscp", "np_cnp_dscp", "", "receiver: DSCP of CNPs", 63},
    {"cnp_802p_prio", "roce_np/cnp_802p_prio", "np_cnp_prio", "",
     "receiver: priority of CNPs; one of its own keeps them out of queues", 7},
    {"rpg_time_reset", "roce_rp/rpg_time_reset", "rp_time_reset", "us",
     "time between rate increases without a CNP (T)", 131071},
    {"rpg_byte_reset", "roce_rp/rpg_byte_reset", "rp_byte_reset", "bytes",
     "bytes between rate increases without a CNP (B)", 32767},
    {"rpg_threshold", "roce_rp/rpg_threshold", "rp_threshold", "",
     "increases before the target rate itself grows (F)", 31},
    {"rpg_ai_rate", "roce_rp/rpg_ai_rate", "rp_ai_rate", "Mb/s",
     "growth of the target rate, additive (R_AI)", kRateMax},
    {"rpg_hai_rate", "roce_rp/rpg_hai_rate", "rp_hai_rate", "Mb/s",
     "growth of the target rate, hyper-additive (R_HAI)", kRateMax},
    {"rpg_min_rate", "roce_rp/rpg_min_rate", "rp_min_rate", "Mb/s", "the lowest rate of a flow",
     kRateMax},
    {"rpg_max_rate", "roce_rp/rpg_max_rate", "rp_max_rate", "Mb/s",
     "the highest rate of a flow; 0: the port's", kRateMax},
    {"rpg_min_dec_fac", "roce_rp/rpg_min_dec_fac", "rp_min_dec_fac", "%",
     "the most that one CNP cuts", 100},
    {"rpg_gd", "roce_rp/rpg_gd", "rp_gd", "",
     "a cut is alpha / 2^gd, alpha in 1/1024; 11: alpha / 2", 15},
    {"dce_tcp_g", "roce_rp/dce_tcp_g", "rp_dce_tcp_g", "1/1024",
     "weight of a new sample in alpha (g)", 1023},
    {"dce_tcp_rtt", "roce_rp/dce_tcp_rtt", "rp_dce_tcp_rtt", "us",
     "time between updates of alpha (K)", 131071},
    {"initial_alpha_value", "roce_rp/initial_alpha_value", "rp_initial_alpha_value", "1/1024",
     "alpha at a flow's first CNP", 1023},
    {"rate_reduce_monitor_period", "roce_rp/rate_reduce_monitor_period",
     "rp_rate_reduce_monitor_period", "us", "least time between two cuts of a flow", 131071},
    {"rate_to_set_on_first_cnp", "roce_rp/rate_to_set_on_first_cnp", "rp_rate_to_set_on_first_cnp",
     "Mb/s", "rate of a flow after its first CNP; 0: cut as by any other", kRateMax},
    {"clamp_tgt_rate", "roce_rp/clamp_tgt_rate", "rp_clamp_tgt_rate", "",
     "1: every CNP sets the target rate to the current one; 0: the first since an increase", 1},
    {"clamp_tgt_rate_after_time_inc", "roce_rp/clamp_tgt_rate_after_time_inc",
     "rp_clamp_tgt_rate_ati", "", "1: likewise when the last increase was the timer's", 1},
};

// What DCQCN wants of a parameter, before it is cut to its field.
std::optional<double> Wanted(absl::string_view name, const DcqcnParameters& dcqcn, double gbps) {
  const double megabits = gbps * 1000;
  if (name == "min_time_between_cnps") return dcqcn.cnp_us;
  if (name == "rpg_time_reset") return dcqcn.increase_us;
  if (name == "rpg_threshold") return dcqcn.fast_steps;
  if (name == "rpg_ai_rate") return std::max(1.0, dcqcn.additive * megabits);
  if (name == "rpg_hai_rate") return std::max(1.0, dcqcn.hyper * megabits);
  if (name == "rpg_min_rate") return std::max(1.0, dcqcn.rate_min * megabits);
  if (name == "dce_tcp_g") return std::max(1.0, dcqcn.g * 1024);
  if (name == "dce_tcp_rtt") return dcqcn.alpha_us;
  if (name == "rpg_gd") return 11;
  if (name == "initial_alpha_value") return 1023;
  return std::nullopt;
}

absl::Status WriteNumber(const std::string& path, int64_t value) {
  errno = 0;
  std::ofstream file(path);
  file << value << "\n";
  file.close();
  if (!file)
    return ErrnoStatus(errno != 0 ? errno : EIO, absl::StrCat("write ", value, " to ", path));
  return absl::OkStatus();
}

absl::Status Write(const NicSetting& setting, int64_t value) {
  if (setting.in_firmware) return WriteAdaptiveRetransmission(setting.path, value != 0);
  return WriteNumber(setting.path, value);
}

absl::Status Change(const NicChange& change) {
  WEFT_RETURN_IF_ERROR(Write(change.now, *change.wanted));
  if (change.now.in_firmware) return absl::OkStatus();  // it was read back
  WEFT_ASSIGN_OR_RETURN(int64_t after, ReadNicSetting(change.now.path));
  if (after == *change.wanted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(change.now.path, " holds ", after, " after ",
                                                    *change.wanted,
                                                    " was written: the NIC "
                                                    "refused it"));
}

}  // namespace

absl::Span<const NicParameter> NicParameters() { return kParameters; }

std::optional<int64_t> NicValue(absl::string_view parameter, const DcqcnParameters& dcqcn,
                                double gbps) {
  std::optional<double> wanted = Wanted(parameter, dcqcn, gbps);
  if (!wanted.has_value()) return std::nullopt;
  for (const NicParameter& known : kParameters) {
    if (known.name == parameter) {
      return std::clamp(std::llround(*wanted), 0LL, static_cast<long long>(known.max));
    }
  }
  return std::nullopt;
}

std::vector<NicChange> PlanNics(const std::vector<RdmaDevice>& devices, const NicWishes& wishes) {
  std::vector<NicChange> changes;
  for (const RdmaDevice& device : devices) {
    double gbps = 0;
    for (const RdmaPort& port : device.ports) {
      gbps = std::max(gbps, port.gbps);
      if (!port.traffic_class.has_value()) continue;
      changes.push_back({device.name, "", "traffic class", "",
                         "of all packets: DSCP << 2 and the ECN bits; -1: as each queue pair says",
                         *port.traffic_class, wishes.traffic_class});
    }
    if (device.adaptive_retransmission.has_value()) {
      changes.push_back({device.name, "", "adaptive retransmission", "",
                         "sends again sooner than a queue pair's timeout, as the path allows",
                         *device.adaptive_retransmission, wishes.adaptive_retransmission});
    }
    for (const NetInterface& interface : device.interfaces) {
      auto add_switch = [&](const char* point, const char* meaning, size_t priority,
                            const std::optional<NicSetting>& now) {
        if (!now.has_value()) return;
        const bool wish = wishes.priority == static_cast<int>(priority);
        changes.push_back({device.name, interface.name,
                           absl::StrCat(point, " of priority ", priority), "", meaning, *now,
                           wish ? std::optional<int64_t>(1) : std::nullopt});
      };
      for (size_t priority = 0; priority < 8; ++priority) {
        add_switch("roce_np", "answers marks with CNPs", priority,
                   interface.ecn.notifies[priority]);
        add_switch("roce_rp", "slows down at CNPs", priority, interface.ecn.reacts[priority]);
      }
      for (const NicParameter& parameter : kParameters) {
        auto now = interface.ecn.parameters.find(std::string(parameter.name));
        if (now == interface.ecn.parameters.end()) continue;
        std::optional<int64_t> wanted;
        if (wishes.dcqcn.has_value() && gbps > 0) {
          wanted = NicValue(parameter.name, *wishes.dcqcn, gbps);
        }
        changes.push_back({device.name, interface.name, std::string(parameter.name),
                           std::string(parameter.unit), std::string(parameter.meaning), now->second,
                           wanted});
      }
    }
  }
  return changes;
}

absl::Status CheckWishes(const std::vector<NicChange>& changes, const NicWishes& wishes) {
  const auto is_heard = [&](absl::string_view ending, bool parameters) {
    return std::any_of(changes.begin(), changes.end(), [&](const NicChange& change) {
      return change.wanted.has_value() && absl::EndsWith(change.name, ending) &&
             (!parameters || NicValue(change.name, *wishes.dcqcn, 1).has_value());
    });
  };
  if (wishes.priority.has_value() &&
      !is_heard(absl::StrCat("of priority ", *wishes.priority), /*parameters=*/false)) {
    return absl::NotFoundError(absl::StrCat(
        "priority ", *wishes.priority,
        ": no NIC here shows DCQCN's switches, which NVIDIA's "
        "out-of-tree driver has in its interface's ecn/roce_np/enable and ecn/roce_rp/enable"));
  }
  if (wishes.traffic_class.has_value() && !is_heard("traffic class", /*parameters=*/false)) {
    return absl::NotFoundError(
        absl::StrCat("traffic class ", *wishes.traffic_class,
                     ": no NIC here shows one that it forces, which "
                     "NVIDIA's out-of-tree driver has in its device's tc/1/traffic_class"));
  }
  if (wishes.dcqcn.has_value() && !is_heard("", /*parameters=*/true)) {
    return absl::NotFoundError(
        "DCQCN's parameters: no NIC here shows any with its port's speed, as in the interface's "
        "ecn folder (NVIDIA's out-of-tree driver) or, to root, in mlx5's cc_params of debugfs");
  }
  return absl::OkStatus();
}

absl::Status ApplyNics(const std::vector<NicChange>& changes) {
  std::vector<const NicChange*> touched;
  for (const NicChange& change : changes) {
    if (!change.differs()) continue;
    touched.push_back(&change);
    absl::Status status = Change(change);
    if (status.ok()) continue;
    std::string left;
    for (auto one = touched.rbegin(); one != touched.rend(); ++one) {
      if (absl::Status back = Write((*one)->now, (*one)->now.value); !back.ok()) {
        absl::StrAppend(&left, "; not put back: ", back.message());
      }
    }
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), left.empty() ? "; everything is as it was" : left));
  }
  return absl::OkStatus();
}

}  // namespace weft::net
