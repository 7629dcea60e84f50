// What all simulated ranks of a process share.
#ifndef WEFT_TOOLS_INIT_PROCESS_CONTEXT_H_
#define WEFT_TOOLS_INIT_PROCESS_CONTEXT_H_

#include "base/poller.h"
#include "base/socket_address.h"
#include "net/transport.h"
#include "tools/init/client.h"
#include "tools/init/options.h"
#include "tools/init/shared.h"

namespace weft::init {

struct ProcessContext {
  const Options* options = nullptr;
  Shared* shared = nullptr;
  net::JobSecret secret{};
  const Expected* exchange = nullptr;  // ExchangeOf()
  Poller* poller = nullptr;
  SocketAddress server;
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_PROCESS_CONTEXT_H_
