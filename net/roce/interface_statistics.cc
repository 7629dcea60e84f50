#include "net/roce/interface_statistics.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file_descriptor.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr uint32_t kMostStatistics = 16384;  // mlx5 with all queues has some thousand

// An ethtool command, whose structure begins at `command`.
absl::Status Ethtool(int socket, const std::string& interface, void* command) {
  ifreq request{};
  std::memcpy(request.ifr_name, interface.data(), interface.size());
  request.ifr_data = static_cast<char*>(command);
  if (ioctl(socket, SIOCETHTOOL, &request) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("read the statistics of ", interface));
}

// `header` and `bytes` behind it, aligned for what the kernel writes there.
template <typename Header>
class Answer {
 public:
  explicit Answer(size_t bytes) : words_((sizeof(Header) + bytes + 7) / 8) {}
  Header& header() { return *reinterpret_cast<Header*>(words_.data()); }
  const char* behind() const {
    return reinterpret_cast<const char*>(words_.data()) + sizeof(Header);
  }
  void* data() { return words_.data(); }

 private:
  std::vector<uint64_t> words_;
};

absl::StatusOr<uint32_t> CountOf(int socket, const std::string& interface) {
  Answer<ethtool_sset_info> sets(sizeof(uint32_t));
  sets.header().cmd = ETHTOOL_GSSET_INFO;
  sets.header().sset_mask = 1ull << ETH_SS_STATS;
  WEFT_RETURN_IF_ERROR(Ethtool(socket, interface, sets.data()));
  if (sets.header().sset_mask == 0) return 0;
  uint32_t count = 0;
  std::memcpy(&count, sets.behind(), sizeof count);
  if (count > kMostStatistics) {
    return absl::ResourceExhaustedError(absl::StrCat("interface ", interface, " has ", count,
                                                     " statistics, at most ", kMostStatistics,
                                                     " are read"));
  }
  return count;
}

// "rx_prio3_pause" of "rx_prio", "_pause": a prefix, one digit, a suffix.
bool IsOfPriority(absl::string_view name, absl::string_view before, absl::string_view after) {
  return name.size() == before.size() + 1 + after.size() && absl::StartsWith(name, before) &&
         absl::EndsWith(name, after) && name[before.size()] >= '0' && name[before.size()] <= '7';
}

bool IsPause(absl::string_view name, absl::string_view direction) {
  return IsOfPriority(name, absl::StrCat(direction, "_prio"), "_pause") ||             // mlx5
         name == absl::StrCat(direction, "_global_pause") ||                           // mlx5
         IsOfPriority(name, absl::StrCat(direction, "_pfc_ena_frames_pri"), "") ||     // bnxt
         IsOfPriority(name, absl::StrCat(direction, "_priority_"), "_xoff.nic") ||     // ice
         IsOfPriority(name, absl::StrCat("port.", direction, "_priority_"), "_xoff");  // i40e
}

}  // namespace

absl::StatusOr<std::map<std::string, int64_t>> ReadInterfaceStatistics(
    const std::string& interface) {
  if (interface.empty() || interface.size() >= IFNAMSIZ) {
    return absl::NotFoundError(absl::StrCat("'", interface, "' is no name of an interface"));
  }
  const FileDescriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "make a socket");
  absl::StatusOr<uint32_t> count = CountOf(socket.get(), interface);
  if (absl::IsUnimplemented(count.status())) return std::map<std::string, int64_t>();
  WEFT_RETURN_IF_ERROR(count.status());
  std::map<std::string, int64_t> statistics;
  if (*count == 0) return statistics;
  Answer<ethtool_gstrings> names(size_t{*count} * ETH_GSTRING_LEN);
  names.header().cmd = ETHTOOL_GSTRINGS;
  names.header().string_set = ETH_SS_STATS;
  names.header().len = *count;
  WEFT_RETURN_IF_ERROR(Ethtool(socket.get(), interface, names.data()));
  Answer<ethtool_stats> values(size_t{*count} * sizeof(uint64_t));
  values.header().cmd = ETHTOOL_GSTATS;
  values.header().n_stats = *count;
  WEFT_RETURN_IF_ERROR(Ethtool(socket.get(), interface, values.data()));
  const uint32_t told = std::min({*count, names.header().len, values.header().n_stats});
  for (uint32_t i = 0; i < told; ++i) {
    const char* name = names.behind() + size_t{i} * ETH_GSTRING_LEN;
    uint64_t value = 0;
    std::memcpy(&value, values.behind() + size_t{i} * sizeof value, sizeof value);
    statistics[std::string(name, strnlen(name, ETH_GSTRING_LEN))] = static_cast<int64_t>(value);
  }
  return statistics;
}

void AddPauses(const std::map<std::string, int64_t>& statistics,
               std::map<std::string, int64_t>* counters) {
  for (const auto& [name, value] : statistics) {
    if (IsPause(name, "rx")) (*counters)["pauses_received"] += value;
    if (IsPause(name, "tx")) (*counters)["pauses_sent"] += value;
  }
}

}  // namespace weft::net
