// Queues and queue pairs of a device opened by libibverbs, for ibverbs_nic.cc alone.
#ifndef WEFT_NET_VERBS_IBVERBS_QUEUES_H_
#define WEFT_NET_VERBS_IBVERBS_QUEUES_H_

#include <infiniband/verbs.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "net/verbs/nic.h"

namespace weft::net {

// "ibv_create_qp on mlx5_0: Cannot allocate memory ...".
absl::Status VerbsFailed(const char* call, const std::string& device, int error);

// Device, protection domain and completion channel: what everything made of a device shares.
struct VerbsDevice {
  std::string name;
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;
  ibv_comp_channel* channel = nullptr;
  ~VerbsDevice() {
    if (channel != nullptr) ibv_destroy_comp_channel(channel);
    if (domain != nullptr) ibv_dealloc_pd(domain);
    if (context != nullptr) ibv_close_device(context);
  }
};

absl::StatusOr<std::unique_ptr<NicCompletionQueue>> MakeIbverbsQueue(
    std::shared_ptr<VerbsDevice> device, int depth);
absl::StatusOr<std::unique_ptr<NicReceiveQueue>> MakeIbverbsReceives(
    std::shared_ptr<VerbsDevice> device, uint32_t depth);
absl::StatusOr<std::unique_ptr<NicQueuePair>> MakeIbverbsPair(std::shared_ptr<VerbsDevice> device,
                                                              NicQueuePairOptions* options);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_IBVERBS_QUEUES_H_
