// The profiler that asks for no events. NCCL looks for one in the net plugin's library; what
// listens to collectives and finds the slow link comes later.
#include "plugins/nccl/abi/profiler.h"

namespace weft::nccl {
namespace {

using abi::Result;

constexpr char kName[] = "weft";

Result InitV1(void** context, int* mask) {
  *context = nullptr;
  *mask = 0;
  return abi::kSuccess;
}
Result InitV4(void** context, int* mask, const char* /*comm_name*/, uint64_t /*comm_hash*/,
              int /*nodes*/, int /*ranks*/, int /*rank*/, abi::LogFunction /*log*/) {
  return InitV1(context, mask);
}
Result InitV5(void** context, uint64_t /*comm_id*/, int* mask, const char* /*comm_name*/,
              int /*nodes*/, int /*ranks*/, int /*rank*/, abi::LogFunction /*log*/) {
  return InitV1(context, mask);
}
Result Start(void* /*context*/, void** event, abi::ProfilerEvent* /*what*/) {
  *event = nullptr;
  return abi::kSuccess;
}
Result Stop(void* /*event*/) { return abi::kSuccess; }
Result Record(void* /*event*/, int /*state*/, abi::ProfilerStateArguments* /*arguments*/) {
  return abi::kSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names.
#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))

WEFT_EXPORT const abi::ProfilerV1 ncclProfiler_v1, ncclProfiler_v2, ncclProfiler_v3;
const abi::ProfilerV1 ncclProfiler_v1 = {kName, InitV1, Start, Stop, Record, Stop};
const abi::ProfilerV1 ncclProfiler_v2 = ncclProfiler_v1;
const abi::ProfilerV1 ncclProfiler_v3 = ncclProfiler_v1;
WEFT_EXPORT const abi::ProfilerV4 ncclProfiler_v4;
const abi::ProfilerV4 ncclProfiler_v4 = {kName, InitV4, Start, Stop, Record, Stop};
WEFT_EXPORT const abi::ProfilerV5 ncclProfiler_v5, ncclProfiler_v6;
const abi::ProfilerV5 ncclProfiler_v5 = {kName, InitV5, Start, Stop, Record, Stop};
const abi::ProfilerV5 ncclProfiler_v6 = ncclProfiler_v5;
// NOLINTEND(readability-identifier-naming)

}  // namespace weft::nccl
