// The contracts between NCCL and a net plugin, each with the name that reports use. Sources: NCCL's
// ext-net documentation and what src/transport/net.cc, src/proxy.cc and src/plugin/net/ of v2.19 to
// v2.30 rely on; docs/nccl-harness.md says more about each.
#ifndef WEFT_TOOLS_NCCL_HARNESS_CONTRACT_H_
#define WEFT_TOOLS_NCCL_HARNESS_CONTRACT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::harness {

enum class Contract : uint8_t {
  kNoCrash,
  kTableComplete,
  kInitEach,
  kFinalizeNull,
  kInitAgain,
  kDevicesStable,
  kPropertiesValid,
  kPropertiesStable,
  kPropertiesSize,
  kVirtualDeviceFails,
  kVirtualDeviceOfOne,
  kListenAtOnce,
  kHandleSize,
  kNeverBlocks,
  kNotYetIsSuccess,
  kConnects,
  kDeviceHandleUntouched,
  kListenClosesEarly,
  kRegisterAgain,
  kRegisterAnyTime,
  kTransientIsSuccess,
  kRequestOverwritten,
  kZeroBytes,
  kRequestsInFlight,
  kCompletes,
  kDataIntact,
  kWritesInBounds,
  kReceiveDoneMeansData,
  kSendDoneFreesBuffer,
  kReceivesInOrder,
  kTagsPickSlots,
  kSizesReceived,
  kSizesInGroup,
  kSizesOfSend,
  kCloseDelivers,
  kPeerDeathReported,
  kDescriptorsReturned,
  kThreadsReturned,
};

struct ContractRow {
  Contract contract;
  absl::string_view name;      // "sizes-received"
  absl::string_view sentence;  // what a plugin must do
};

// In the order of the enum.
absl::Span<const ContractRow> Contracts();
const ContractRow& RowOf(Contract contract);
const ContractRow* FindContract(absl::string_view name);  // null: none

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_CONTRACT_H_
