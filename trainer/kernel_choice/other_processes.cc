#include "trainer/kernel_choice/other_processes.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/clock.h"

namespace weft::train {

double OtherProcesses::Cores() const {
  const Times now = Read();
  const double wall = now.wall - before_.wall;
  if (wall <= 0 || now.all <= 0) return 0;
  return std::max(0.0, (now.all - before_.all - (now.own - before_.own)) / wall);
}

OtherProcesses::Times OtherProcesses::Read() {
  Times times{.wall = 1e-9 * static_cast<double>(SystemClock::Nanoseconds())};
  std::ifstream file("/proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
  if (file >> word >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal) {
    times.all =
        (user + nice + system + irq + softirq + steal) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  for (const timeval& part : {usage.ru_utime, usage.ru_stime}) {
    times.own += static_cast<double>(part.tv_sec) + 1e-6 * static_cast<double>(part.tv_usec);
  }
  return times;
}

}  // namespace weft::train
