// The counters of this host's network interfaces and RDMA devices, as the kernel shows them.
#ifndef WEFT_TOOLS_OBSERVE_HOST_COUNTERS_H_
#define WEFT_TOOLS_OBSERVE_HOST_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

namespace weft::observe {

struct HostCounters {
  // By interface or "device/port", then by the kernel's name of the counter.
  std::map<std::string, std::map<std::string, int64_t>> interfaces;  // rx_bytes, tx_dropped, ...
  std::map<std::string, std::map<std::string, int64_t>> rdma;        // those that tell trouble
  double load = 0;                                                   // of one minute
  double cpu_pressure = -1;  // PSI: the part of the last 10 s in which something waited; -1: none
};

// `root` stands before /sys and /proc, for tests.
HostCounters ReadHostCounters(const std::string& root = "");

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_HOST_COUNTERS_H_
