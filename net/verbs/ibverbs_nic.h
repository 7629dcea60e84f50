// libibverbs behind nic.h. Every file that names an ibv_ function is ibverbs_nic.cc.
#ifndef WEFT_NET_VERBS_IBVERBS_NIC_H_
#define WEFT_NET_VERBS_IBVERBS_NIC_H_

#include <memory>

#include "net/verbs/nic.h"

namespace weft::net {

std::unique_ptr<Nic> MakeIbverbsNic();

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_IBVERBS_NIC_H_
