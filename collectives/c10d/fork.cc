#include "collectives/c10d/fork.h"

#include <pthread.h>

#include <atomic>

namespace weft::collectives {
namespace {

std::atomic<int> forks{0};

void CountFork() { forks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

int ForkCount() {
  static const int registered = pthread_atfork(nullptr, nullptr, &CountFork);
  return registered == 0 ? forks.load(std::memory_order_relaxed) : 0;
}

}  // namespace weft::collectives
