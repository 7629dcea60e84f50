// The function tables of NCCL's tuner plugins, ncclTunerPlugin_v2 to v6: which algorithm, protocol
// and number of channels a collective uses.
//
// `cost_table` is declared float** by NCCL and IS a contiguous float[algorithms][protocols]: the
// lowest wins, -1 means not available. A tuner that leaves everything as it is has declined. An
// error fails the collective (2.28), and all ranks must answer alike.
#ifndef WEFT_PLUGINS_NCCL_ABI_TUNER_H_
#define WEFT_PLUGINS_NCCL_ABI_TUNER_H_

#include "plugins/nccl/abi/common.h"

namespace weft::nccl::abi {

inline constexpr int kTunerAlgorithms =
    7;  // tree ring collnet-direct collnet-chain nvls nvls-tree pat
inline constexpr int kTunerProtocols = 3;  // LL LL128 simple
inline constexpr float kCostIgnore = -1.0f;

// ncclFunc_t.
enum Collective : int32_t { kBroadcast = 0, kReduce, kAllGather, kReduceScatter, kAllReduce };

struct NvlDomainInfo {  // v5, v6
  int domains;
  int ranks_min;
  int ranks_max;
};

struct TunerConstants {                                             // v5, v6
  double base_latencies[kTunerAlgorithms][kTunerProtocols];         // microseconds
  double hardware_latencies[3][kTunerAlgorithms][kTunerProtocols];  // of nvlink, pci, net
  double ll_bandwidths_max[4][3];  // [compute capability][1, 2, 4 nodes], GB/s
  double channel_ring_ll128_bandwidths_max[4][3];
  double channel_tree_ll128_bandwidths_max[4][3];
  double channel_tree_bandwidths_max[4][3];
  double channel_nvls_tree_bandwidths_max[4][3];
};

struct TunerV2 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, LogFunction log, void** context);
  Result (*get_coll_info)(void* context, Collective collective, size_t bytes, int collnet, int nvls,
                          int pipe_ops, int* algorithm, int* protocol, int* channels);
  Result (*destroy)(void* context);
};

struct TunerV3 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, LogFunction log, void** context);
  Result (*get_coll_info)(void* context, Collective collective, size_t bytes, int pipe_ops,
                          float** cost_table, int algorithms, int protocols, int* channels);
  Result (*destroy)(void* context);
};

struct TunerV4 {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, LogFunction log, void** context);
  Result (*get_coll_info)(void* context, Collective collective, size_t bytes, int pipe_ops,
                          float** cost_table, int algorithms, int protocols, int registered,
                          int* channels);
  Result (*destroy)(void* context);
};

struct TunerV5 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, LogFunction log,
                 NvlDomainInfo* domains, TunerConstants* constants);
  Result (*get_coll_info)(void* context, Collective collective, size_t bytes, int pipe_ops,
                          float** cost_table, int algorithms, int protocols, int registered,
                          int* channels);
  Result (*finalize)(void* context);
};

struct TunerV6 {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, LogFunction log,
                 NvlDomainInfo* domains, TunerConstants* constants);
  Result (*get_coll_info)(void* context, Collective collective, size_t bytes, int pipe_ops,
                          float** cost_table, int algorithms, int protocols, int registered,
                          int* channels);
  Result (*finalize)(void* context);
  Result (*get_chunk_size)(void* context, Collective collective, size_t bytes, int algorithm,
                           int protocol, int channels, size_t* chunk_bytes);  // may be null
};

static_assert(sizeof(NvlDomainInfo) == 12);
static_assert(sizeof(TunerConstants) == 8 * (21 + 63 + 5 * 12));
static_assert(offsetof(TunerConstants, hardware_latencies) == 168 &&
              offsetof(TunerConstants, ll_bandwidths_max) == 672 &&
              offsetof(TunerConstants, channel_nvls_tree_bandwidths_max) == 1056);
static_assert(sizeof(TunerV2) == 32 && offsetof(TunerV2, init) == 8 &&
              offsetof(TunerV2, get_coll_info) == 16 && offsetof(TunerV2, destroy) == 24);
static_assert(sizeof(TunerV3) == 32 && offsetof(TunerV3, init) == 8 &&
              offsetof(TunerV3, get_coll_info) == 16 && offsetof(TunerV3, destroy) == 24);
static_assert(sizeof(TunerV4) == 32 && offsetof(TunerV4, init) == 8 &&
              offsetof(TunerV4, get_coll_info) == 16 && offsetof(TunerV4, destroy) == 24);
static_assert(sizeof(TunerV5) == 32 && offsetof(TunerV5, init) == 8 &&
              offsetof(TunerV5, get_coll_info) == 16 && offsetof(TunerV5, finalize) == 24);
static_assert(sizeof(TunerV6) == 40 && offsetof(TunerV6, init) == 8 &&
              offsetof(TunerV6, get_coll_info) == 16 && offsetof(TunerV6, finalize) == 24 &&
              offsetof(TunerV6, get_chunk_size) == 32);

}  // namespace weft::nccl::abi

#endif  // WEFT_PLUGINS_NCCL_ABI_TUNER_H_
