// A process of weft-init: its hosts' ranks, and their relays, in one poller.
#ifndef WEFT_TOOLS_INIT_WORKER_H_
#define WEFT_TOOLS_INIT_WORKER_H_

#include <string>

#include "net/transport.h"
#include "tools/init/options.h"
#include "tools/init/shared.h"

namespace weft::init {

struct WorkerPlan {
  const Options* options = nullptr;
  Shared* shared = nullptr;
  int host_first = 0;
  int host_end = 0;
  net::JobSecret secret{};
};

// Reads the store's address from `commands`, runs its ranks through, and writes one line to
// `results`: "ok", or an error. Then serves until `commands` is closed.
void RunWorker(const WorkerPlan& plan, int commands, int results);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_WORKER_H_
