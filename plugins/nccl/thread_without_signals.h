// Signals are the program's: none is handled by a thread that it does not know.
#ifndef WEFT_PLUGINS_NCCL_THREAD_WITHOUT_SIGNALS_H_
#define WEFT_PLUGINS_NCCL_THREAD_WITHOUT_SIGNALS_H_

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace weft::nccl {

// Throws std::system_error as std::thread does.
template <typename Function>
std::thread ThreadWithoutSignals(Function function) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread out;
  std::error_code failed;
  try {
    out = std::thread(std::move(function));
  } catch (const std::system_error& error) {
    failed = error.code();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed) throw std::system_error(failed);
  return out;
}

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_THREAD_WITHOUT_SIGNALS_H_
