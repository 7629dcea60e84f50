// libibverbs behind nic.h. No file but ibverbs_nic.cc and ibverbs_queues.cc names an ibv_
// function.
#ifndef WEFT_NET_VERBS_IBVERBS_NIC_H_
#define WEFT_NET_VERBS_IBVERBS_NIC_H_

#include <memory>

#include "net/verbs/nic.h"

namespace weft::net {

std::unique_ptr<Nic> MakeIbverbsNic();

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_IBVERBS_NIC_H_
