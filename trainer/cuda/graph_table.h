// CUDA graphs, of libweft-train-cuda.so: what a stream is given while it is captured becomes a
// graph, which is launched as one. trainer/device/graphs.h calls these.
//
// Tensors that are made during a capture come from LibTorch's allocator, and a graph keeps their
// addresses: they have to be of a pool of their own, whose memory nobody else gets. LibTorch has
// such pools, but only for programs that are compiled with CUDA; this library is.
//
// Every call returns 0, or an error whose text LastError() of the same thread gives, naming the
// call. Captures and graphs are opaque. One thread at a time.
#ifndef WEFT_TRAINER_CUDA_GRAPH_TABLE_H_
#define WEFT_TRAINER_CUDA_GRAPH_TABLE_H_

#include <cstdint>

struct WeftStream;  // collectives/cuda/device_table.h

extern "C" {

// Raised with every change of WeftGraphTable.
inline constexpr uint32_t kWeftGraphVersion = 1;

struct WeftCapture;  // a graph as it was captured
struct WeftGraph;    // one that can be launched

struct WeftGraphTable {
  uint32_t version;      // kWeftGraphVersion
  uint32_t size;         // sizeof(WeftGraphTable)
  const char* libtorch;  // the version that the library was built with, as "2.11.0"

  const char* (*LastError)();

  // From PoolBegin to PoolEnd what LibTorch allocates on `stream` is of the pool. `pool` is any
  // number: the first PoolBegin with it makes the pool. When PoolRelease was called as often as
  // PoolBegin the number is free for another pool, and the memory goes with its last tensor.
  int (*PoolBegin)(int device, uint64_t pool, WeftStream* stream);
  int (*PoolEnd)(int device, uint64_t pool);
  int (*PoolRelease)(int device, uint64_t pool);

  // `stream` is not the default one. Until CaptureEnd nothing that it is given runs. Calls that a
  // capture forbids (waiting for the stream, allocating by cudaMalloc) fail on this thread alone.
  int (*CaptureBegin)(WeftStream* stream);
  // Ends the capture, also one that has failed, which is an error then: `capture` is null.
  int (*CaptureEnd)(WeftStream* stream, WeftCapture** capture);
  int (*CaptureDestroy)(WeftCapture* capture);

  // `stream` brings the graph to the GPU, with the memory that kernels take for one call: a launch
  // on it allocates nothing. On another stream that memory would be mapped anew.
  int (*Instantiate)(WeftCapture* capture, WeftStream* stream, WeftGraph** graph);
  int (*Launch)(WeftGraph* graph, WeftStream* stream);
  int (*Destroy)(WeftGraph* graph);
};

// The library's second symbol, beside weft_fused_library.
const WeftGraphTable* weft_graph_table();

}  // extern "C"

#endif  // WEFT_TRAINER_CUDA_GRAPH_TABLE_H_
