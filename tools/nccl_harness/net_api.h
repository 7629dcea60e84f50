// A net plugin's table of any version, called as NCCL calls it: the differences between versions
// are those that NCCL's own shims (src/plugin/net/net_vN.cc) make. Every call is watched.
#ifndef WEFT_TOOLS_NCCL_HARNESS_NET_API_H_
#define WEFT_TOOLS_NCCL_HARNESS_NET_API_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/nccl/abi/net.h"
#include "tools/nccl_harness/watch.h"

namespace weft::harness {

inline constexpr int kVersionMin = 7, kVersionMax = 12;

// What every version's properties have, and what later ones add (else as NCCL's shims fill it in).
struct Properties {
  std::string name;  // "" when the plugin gave none
  const char* name_pointer = nullptr;
  std::string pci_path;
  int ptr_support = 0, speed = 0, max_comms = 0, max_recvs = 0;
  int device_type = 0, device_version = 0;
  int virtual_count = 1;
  size_t max_p2p_bytes = size_t{1} << 30, max_coll_bytes = size_t{1} << 29;
  int max_multi_request_size = 1;
  int bytes_overrun = 0;  // written behind the struct
};

struct Received {
  std::vector<void*> data, memory;
  std::vector<size_t> sizes;
  std::vector<int> tags;
};

class NetApi {
 public:
  virtual ~NetApi() = default;
  // The class of communicators to come; as NCCL has it, v10 hands it to connect and v11 to init.
  int traffic_class = -1;
  virtual int version() const = 0;
  virtual const char* name() const = 0;
  virtual std::vector<std::string> MissingFunctions() const = 0;
  virtual bool has_virtual_devices() const = 0;
  bool per_communicator() const { return version() >= 11; }

  // Once for each communicator; up to v10 only the first that is alive reaches the plugin.
  virtual nccl::abi::Result Init(uint64_t comm_id, void** context) = 0;
  // v11 on: the plugin's. Before: nothing but the count.
  virtual nccl::abi::Result Finalize(void* context) = 0;
  virtual nccl::abi::Result Devices(int* count) = 0;
  virtual nccl::abi::Result GetProperties(int device, Properties* properties) = 0;
  virtual nccl::abi::Result MakeVirtualDevice(int* device, const std::vector<int>& parts) = 0;
  virtual nccl::abi::Result Listen(void* context, int device, void* handle, void** comm) = 0;
  virtual nccl::abi::Result Connect(void* context, int device, void* handle, void** comm,
                                    nccl::abi::DeviceHandle** device_handle) = 0;
  virtual nccl::abi::Result Accept(void* listen, void** comm,
                                   nccl::abi::DeviceHandle** device_handle) = 0;
  virtual nccl::abi::Result Register(void* comm, void* data, size_t size, void** memory) = 0;
  // A GPU's, by its DMA-BUF.
  virtual nccl::abi::Result RegisterDmaBuf(void* comm, void* data, size_t size, uint64_t offset,
                                           int fd, void** memory) = 0;
  virtual nccl::abi::Result Deregister(void* comm, void* memory) = 0;
  virtual nccl::abi::Result Send(void* comm, void* data, size_t size, int tag, void* memory,
                                 void** request) = 0;
  // Up to v8, NCCL's shim clears the hint in *request.
  virtual nccl::abi::Result Receive(void* comm, Received& what, void** request) = 0;
  // `what` as it was received, with real sizes.
  virtual nccl::abi::Result Flush(void* comm, Received& what, void** request) = 0;
  virtual nccl::abi::Result Test(void* request, int* done, int* sizes) = 0;
  virtual nccl::abi::Result CloseSend(void* comm) = 0;
  virtual nccl::abi::Result CloseReceive(void* comm) = 0;
  virtual nccl::abi::Result CloseListen(void* comm) = 0;
};

// The shared object, loaded as NCCL does. Move-only; the destructor unloads it.
class Library {
 public:
  // `name` as in NCCL_NET_PLUGIN: a path, a file name, or NAME for libnccl-net-NAME.so. NotFound
  // says what the loader said to each.
  static absl::StatusOr<Library> Load(const std::string& name);
  Library(Library&& other) noexcept;
  Library& operator=(Library&&) = delete;
  ~Library();

  const std::string& path() const { return path_; }
  std::vector<int> versions() const;            // that are exported and that the harness knows
  void* Symbol(const std::string& name) const;  // null: not exported
  bool has(const std::string& symbol) const { return Symbol(symbol) != nullptr; }
  std::unique_ptr<NetApi> Open(int version, Watch& watch) const;  // null: not exported

 private:
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* handle_;
  std::string path_;
};

}  // namespace weft::harness

#endif  // WEFT_TOOLS_NCCL_HARNESS_NET_API_H_
