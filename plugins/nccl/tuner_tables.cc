// The tuner that declines: it leaves NCCL's own choice as it is. NCCL looks for one in the net
// plugin's library, and the policy that will stand here comes with the planner.
#include "plugins/nccl/abi/tuner.h"

namespace weft::nccl {
namespace {

using abi::LogFunction;
using abi::Result;

constexpr char kName[] = "weft";

Result InitOld(size_t /*ranks*/, size_t /*nodes*/, LogFunction /*log*/, void** context) {
  *context = nullptr;
  return abi::kSuccess;
}
Result InitNew(void** context, uint64_t /*comm_id*/, size_t /*ranks*/, size_t /*nodes*/,
               LogFunction /*log*/, abi::NvlDomainInfo* /*domains*/,
               abi::TunerConstants* /*constants*/) {
  *context = nullptr;
  return abi::kSuccess;
}
Result ChooseV2(void* /*context*/, abi::Collective /*collective*/, size_t /*bytes*/,
                int /*collnet*/, int /*nvls*/, int /*pipe_ops*/, int* /*algorithm*/,
                int* /*protocol*/, int* /*channels*/) {
  return abi::kSuccess;
}
Result ChooseV3(void* /*context*/, abi::Collective /*collective*/, size_t /*bytes*/,
                int /*pipe_ops*/, float** /*cost_table*/, int /*algorithms*/, int /*protocols*/,
                int* /*channels*/) {
  return abi::kSuccess;
}
Result ChooseV4(void* /*context*/, abi::Collective /*collective*/, size_t /*bytes*/,
                int /*pipe_ops*/, float** /*cost_table*/, int /*algorithms*/, int /*protocols*/,
                int /*registered*/, int* /*channels*/) {
  return abi::kSuccess;
}
Result Finish(void* /*context*/) { return abi::kSuccess; }

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))

WEFT_EXPORT const abi::TunerV2 ncclTunerPlugin_v2;
const abi::TunerV2 ncclTunerPlugin_v2 = {kName, InitOld, ChooseV2, Finish};
WEFT_EXPORT const abi::TunerV3 ncclTunerPlugin_v3;
const abi::TunerV3 ncclTunerPlugin_v3 = {kName, InitOld, ChooseV3, Finish};
WEFT_EXPORT const abi::TunerV4 ncclTunerPlugin_v4;
const abi::TunerV4 ncclTunerPlugin_v4 = {kName, InitOld, ChooseV4, Finish};
WEFT_EXPORT const abi::TunerV5 ncclTunerPlugin_v5;
const abi::TunerV5 ncclTunerPlugin_v5 = {kName, InitNew, ChooseV4, Finish};
WEFT_EXPORT const abi::TunerV6 ncclTunerPlugin_v6;
const abi::TunerV6 ncclTunerPlugin_v6 = {kName, InitNew, ChooseV4, Finish, nullptr};
// NOLINTEND(readability-identifier-naming)

}  // namespace weft::nccl
