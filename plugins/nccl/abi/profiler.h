// The function tables of NCCL's profiler plugins, ncclProfiler_v1 to v6. Event descriptors and
// state arguments are opaque: nothing here reads them yet, and what reads them declares their
// layout.
//
// The mask that init writes is one for the process; 0 asks for no events. Calls come from the
// application's, the proxy's and the net's threads at once; results are ignored but for init's.
#ifndef WEFT_PLUGINS_NCCL_ABI_PROFILER_H_
#define WEFT_PLUGINS_NCCL_ABI_PROFILER_H_

#include "plugins/nccl/abi/common.h"

namespace weft::nccl::abi {

struct ProfilerEvent;           // ncclProfilerEventDescr_vN
struct ProfilerStateArguments;  // ncclProfilerEventStateArgs_vN

struct ProfilerV1 {  // v1, v2, v3
  const char* name;
  Result (*init)(void** context, int* mask);
  Result (*start_event)(void* context, void** event, ProfilerEvent* what);
  Result (*stop_event)(void* event);
  Result (*record_event_state)(void* event, int state, ProfilerStateArguments* arguments);
  Result (*finalize)(void* context);
};

struct ProfilerV4 {
  const char* name;
  Result (*init)(void** context, int* mask, const char* comm_name, uint64_t comm_hash, int nodes,
                 int ranks, int rank, LogFunction log);
  Result (*start_event)(void* context, void** event, ProfilerEvent* what);
  Result (*stop_event)(void* event);
  Result (*record_event_state)(void* event, int state, ProfilerStateArguments* arguments);
  Result (*finalize)(void* context);
};

struct ProfilerV5 {  // v5, v6
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, int* mask, const char* comm_name, int nodes,
                 int ranks, int rank, LogFunction log);
  Result (*start_event)(void* context, void** event, ProfilerEvent* what);
  Result (*stop_event)(void* event);
  Result (*record_event_state)(void* event, int state, ProfilerStateArguments* arguments);
  Result (*finalize)(void* context);
};

#define WEFT_ABI_PROFILER(type)                                                                 \
  static_assert(sizeof(type) == 48 && offsetof(type, name) == 0 && offsetof(type, init) == 8 && \
                offsetof(type, start_event) == 16 && offsetof(type, stop_event) == 24 &&        \
                offsetof(type, record_event_state) == 32 && offsetof(type, finalize) == 40)
WEFT_ABI_PROFILER(ProfilerV1);
WEFT_ABI_PROFILER(ProfilerV4);
WEFT_ABI_PROFILER(ProfilerV5);

}  // namespace weft::nccl::abi

#endif  // WEFT_PLUGINS_NCCL_ABI_PROFILER_H_
