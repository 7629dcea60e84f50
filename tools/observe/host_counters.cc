#include "tools/observe/host_counters.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/first_line.h"
#include "net/roce/counters.h"
#include "net/roce/devices.h"

namespace weft::observe {
namespace {

constexpr const char* kInterfaceCounters[] = {"rx_bytes",  "tx_bytes",  "rx_packets", "tx_packets",
                                              "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"};

void ReadNumber(const std::string& path, const std::string& name,
                std::map<std::string, int64_t>* out) {
  int64_t value = 0;
  if (absl::SimpleAtoi(FirstLine(path), &value)) (*out)[name] = value;
}

}  // namespace

HostCounters ReadHostCounters(const std::string& root) {
  HostCounters counters;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/sys/class/net", error)) {
    auto& own = counters.interfaces[entry.path().filename().string()];
    for (const char* name : kInterfaceCounters) {
      ReadNumber(absl::StrCat(entry.path().string(), "/statistics/", name), name, &own);
    }
    ReadNumber(entry.path().string() + "/carrier_changes", "carrier_changes", &own);
    if (own.empty()) counters.interfaces.erase(entry.path().filename().string());
  }
  if (auto devices = net::ReadRdmaDevices(root); devices.ok()) {
    for (const net::RdmaDevice& device : *devices) {
      for (const net::RdmaPort& port : device.ports) {
        auto& own = counters.rdma[absl::StrCat(device.name, "/", port.number)];
        for (const auto& [name, value] : port.counters) {
          if (net::FindCounter(name) != nullptr) own[name] = value;
        }
      }
    }
  }
  const std::string load = FirstLine(root + "/proc/loadavg");
  (void)absl::SimpleAtod(load.substr(0, load.find(' ')), &counters.load);
  for (absl::string_view word :
       absl::StrSplit(FirstLine(root + "/proc/pressure/cpu"), ' ', absl::SkipEmpty())) {
    double percent = 0;
    if (absl::ConsumePrefix(&word, "avg10=") && absl::SimpleAtod(word, &percent)) {
      counters.cpu_pressure = percent / 100;
    }
  }
  return counters;
}

}  // namespace weft::observe
