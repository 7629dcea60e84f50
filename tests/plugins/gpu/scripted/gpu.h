// What the calls of the scripted GPU share: its memory, which the CPU reads and writes as any, its
// streams, and what NCCL's tables say of the kernels. There is one GPU in a process, as CUDA has
// it.
#ifndef WEFT_TESTS_PLUGINS_GPU_SCRIPTED_GPU_H_
#define WEFT_TESTS_PLUGINS_GPU_SCRIPTED_GPU_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>

#include "tests/plugins/gpu/scripted/kernels.h"
#include "tests/plugins/gpu/scripted/streams.h"

namespace weft::scripted {

// cudaError_t
inline constexpr int kSuccess = 0, kInvalidValue = 1, kNotReady = 600, kNotSupported = 801;
inline constexpr int kCudaVersion = 13000;

enum class MemoryType { kUnregistered, kHost, kDevice };  // cudaMemoryType

struct Memory {
  char* address;
  size_t size;
  MemoryType type;
};

// Thread-safe.
class Gpu {
 public:
  static constexpr size_t kMemoryBytes = size_t{1} << 32;
  static Gpu& The();

  int Allocate(void** address, size_t size, MemoryType type);
  int Free(void* address);
  std::optional<Memory> Find(const void* address);  // the memory that the address lies in

  Stream* NewStream();
  void EndStream(Stream* stream);
  Stream& Resolve(void* stream);  // null: the default stream
  void Drain();                   // all streams

  std::unique_ptr<KernelTable> kernels;  // since NCCL was attached

 private:
  std::mutex mutex_;
  std::map<const char*, Memory> memory_;
  std::set<Stream*> streams_;
  Stream default_stream_;
};

}  // namespace weft::scripted

#endif  // WEFT_TESTS_PLUGINS_GPU_SCRIPTED_GPU_H_
