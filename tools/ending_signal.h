// Removal of a temporary folder when a signal ends the program.
#ifndef WEFT_TOOLS_ENDING_SIGNAL_H_
#define WEFT_TOOLS_ENDING_SIGNAL_H_

#include <signal.h>

#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace weft {

// From here on SIGINT, SIGTERM and SIGHUP wait for a thread of their own, which calls `clean_up`
// and then ends the process by the signal; the process's other threads run on meanwhile. Signals
// that are ignored stay ignored, as under nohup. Call it once, before other threads start: those
// inherit the mask.
inline void CleanUpAtEndingSignal(std::function<void()> clean_up) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&ends, signal);
  }
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  std::thread([clean_up = std::move(clean_up), ends] {
    int signal = 0;
    if (sigwait(&ends, &signal) != 0) return;
    clean_up();
    pthread_sigmask(SIG_UNBLOCK, &ends, nullptr);
    raise(signal);
  }).detach();
}

// Removes a folder to which others may still add files.
inline void RemoveWhileWritten(const std::string& folder) {
  std::error_code error;
  do {
    std::filesystem::remove_all(folder, error);
  } while (error == std::errc::directory_not_empty);
}

}  // namespace weft

#endif  // WEFT_TOOLS_ENDING_SIGNAL_H_
