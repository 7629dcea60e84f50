#include "tools/nccl_harness/net_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::harness {
namespace {

using nccl::abi::DeviceHandle;
using nccl::abi::Result;

Result NoProfiler(void** /*event*/, int /*type*/, void* /*parent*/, int64_t /*plugin_id*/,
                  void* /*data*/) {
  return nccl::abi::kSuccess;
}

template <int kVersion>
struct VersionTypes;
#define WEFT_VERSION_TYPES(version, properties, parts) \
  template <>                                          \
  struct VersionTypes<version> {                       \
    using Table = nccl::abi::NetV##version;            \
    using Properties = nccl::abi::properties;          \
    using Parts = nccl::abi::parts;                    \
  }
WEFT_VERSION_TYPES(7, PropertiesV7, VirtualDeviceV9);
WEFT_VERSION_TYPES(8, PropertiesV8, VirtualDeviceV9);
WEFT_VERSION_TYPES(9, PropertiesV9, VirtualDeviceV9);
WEFT_VERSION_TYPES(10, PropertiesV9, VirtualDeviceV9);
WEFT_VERSION_TYPES(11, PropertiesV11, VirtualDeviceV9);
WEFT_VERSION_TYPES(12, PropertiesV12, VirtualDeviceV12);

template <int kVersion>
class TableApi final : public NetApi {
 public:
  using Table = typename VersionTypes<kVersion>::Table;
  using RawProperties = typename VersionTypes<kVersion>::Properties;
  using Parts = typename VersionTypes<kVersion>::Parts;

  TableApi(const Table& table, Watch& watch) : table_(table), watch_(watch) {}

  int version() const override { return kVersion; }
  const char* name() const override { return table_.name == nullptr ? "" : table_.name; }

  std::vector<std::string> MissingFunctions() const override {
    std::vector<std::string> missing;
    auto need = [&](const void* function, const char* what) {
      if (function == nullptr) missing.emplace_back(what);
    };
    auto pointer = [](auto function) { return reinterpret_cast<const void*>(function); };
    need(table_.name, "name");
    need(pointer(table_.init), "init");
    need(pointer(table_.devices), "devices");
    need(pointer(table_.get_properties), "getProperties");
    need(pointer(table_.listen), "listen");
    need(pointer(table_.connect), "connect");
    need(pointer(table_.accept), "accept");
    need(pointer(table_.reg_mr), "regMr");
    need(pointer(table_.dereg_mr), "deregMr");
    need(pointer(table_.isend), "isend");
    need(pointer(table_.irecv), "irecv");
    need(pointer(table_.test), "test");
    need(pointer(table_.close_send), "closeSend");
    need(pointer(table_.close_recv), "closeRecv");
    need(pointer(table_.close_listen), "closeListen");
    if constexpr (kVersion >= 11) need(pointer(table_.finalize), "finalize");
    return missing;
  }
  bool has_virtual_devices() const override {
    if constexpr (kVersion >= 9) return table_.make_virtual_device != nullptr;
    return false;
  }

  Result Init(uint64_t comm_id, void** context) override {
    *context = nullptr;
    if constexpr (kVersion >= 11) {
      nccl::abi::CommConfig config{traffic_class};
      CallScope scope(watch_, "init", false, Contract::kInitEach);
      return table_.init(context, comm_id, &config, &HarnessLogger, &NoProfiler);
    } else {
      if (alive_++ > 0) return nccl::abi::kSuccess;
      CallScope scope(watch_, "init", false, Contract::kInitEach);
      Result result;
      if constexpr (kVersion == 10) {
        result = table_.init(&HarnessLogger, &NoProfiler);
      } else {
        result = table_.init(&HarnessLogger);
      }
      if (result != nccl::abi::kSuccess) --alive_;
      return result;
    }
  }

  Result Finalize(void* context) override {
    if constexpr (kVersion >= 11) {
      CallScope scope(watch_, "finalize", false,
                      context == nullptr ? Contract::kFinalizeNull : Contract::kNoCrash);
      return table_.finalize(context);
    } else {
      --alive_;
      return nccl::abi::kSuccess;
    }
  }

  Result Devices(int* count) override {
    CallScope scope(watch_, "devices", false);
    return table_.devices(count);
  }

  Result GetProperties(int device, Properties* out) override {
    // What lies behind the struct is written too, when it is taken for a newer one.
    constexpr size_t kBehind = 128;
    constexpr unsigned char kUntouched = 0xA5;
    alignas(RawProperties) unsigned char memory[sizeof(RawProperties) + kBehind];
    std::memset(memory, kUntouched, sizeof(memory));
    std::memset(memory, 0, sizeof(RawProperties));
    auto* raw = reinterpret_cast<RawProperties*>(memory);
    Result result;
    {
      CallScope scope(watch_, "getProperties", false);
      result = table_.get_properties(device, raw);
    }
    *out = {};
    out->bytes_overrun =
        static_cast<int>(std::count_if(memory + sizeof(RawProperties), memory + sizeof(memory),
                                       [](unsigned char byte) { return byte != kUntouched; }));
    if (result != nccl::abi::kSuccess) return result;
    out->name_pointer = raw->name;
    out->name = raw->name == nullptr ? "" : raw->name;
    out->pci_path = raw->pci_path == nullptr ? "" : raw->pci_path;
    out->ptr_support = raw->ptr_support;
    out->speed = raw->speed;
    out->max_comms = raw->max_comms;
    out->max_recvs = raw->max_recvs;
    out->device_type = raw->device_type;
    out->device_version = raw->device_version;
    if constexpr (kVersion >= 9) {
      out->virtual_count = raw->virtual_device.count;
      out->max_p2p_bytes = raw->max_p2p_bytes;
      out->max_coll_bytes = raw->max_coll_bytes;
    }
    if constexpr (kVersion >= 11) out->max_multi_request_size = raw->max_multi_request_size;
    return result;
  }

  Result MakeVirtualDevice(int* device, const std::vector<int>& parts) override {
    if constexpr (kVersion >= 9) {
      Parts raw{};
      raw.count = static_cast<int>(std::min(parts.size(), std::size(raw.devices)));
      std::copy_n(parts.begin(), raw.count, raw.devices);
      CallScope scope(watch_, "makeVDevice", false, Contract::kVirtualDeviceFails);
      return table_.make_virtual_device(device, &raw);
    } else {
      return nccl::abi::kInvalidUsage;
    }
  }

  Result Listen(void* context, int device, void* handle, void** comm) override {
    CallScope scope(watch_, "listen", true);
    if constexpr (kVersion >= 11) return table_.listen(context, device, handle, comm);
    return ListenPlain(table_, device, handle, comm);
  }

  Result Connect(void* context, int device, void* handle, void** comm,
                 DeviceHandle** device_handle) override {
    CallScope scope(watch_, "connect", true, Contract::kNeverBlocks);
    if constexpr (kVersion >= 11) {
      return table_.connect(context, device, handle, comm, device_handle);
    } else if constexpr (kVersion == 10) {
      nccl::abi::CommConfig config{traffic_class};
      return table_.connect(device, &config, handle, comm, device_handle);
    } else {
      return table_.connect(device, handle, comm, device_handle);
    }
  }

  Result Accept(void* listen, void** comm, DeviceHandle** device_handle) override {
    CallScope scope(watch_, "accept", true, Contract::kNeverBlocks);
    return table_.accept(listen, comm, device_handle);
  }

  Result Register(void* comm, void* data, size_t size, void** memory) override {
    CallScope scope(watch_, "regMr", false);
    if constexpr (kVersion == 7) {
      return table_.reg_mr(comm, data, static_cast<int>(size), nccl::abi::kPointerHost, memory);
    } else {
      return table_.reg_mr(comm, data, size, nccl::abi::kPointerHost, memory);
    }
  }
  Result RegisterDmaBuf(void* comm, void* data, size_t size, uint64_t offset, int fd,
                        void** memory) override {
    CallScope scope(watch_, "regMrDmaBuf", false);
    if (table_.reg_mr_dma_buf == nullptr) return nccl::abi::kInvalidUsage;
    return table_.reg_mr_dma_buf(comm, data, size, nccl::abi::kPointerCuda, offset, fd, memory);
  }
  Result Deregister(void* comm, void* memory) override {
    CallScope scope(watch_, "deregMr", false);
    return table_.dereg_mr(comm, memory);
  }

  Result Send(void* comm, void* data, size_t size, int tag, void* memory, void** request) override {
    CallScope scope(watch_, "isend", true, Contract::kNeverBlocks);
    if constexpr (kVersion >= 10) {
      return table_.isend(comm, data, size, tag, memory, nullptr, request);
    } else if constexpr (kVersion == 9) {
      return table_.isend(comm, data, size, tag, memory, request);
    } else {
      return table_.isend(comm, data, static_cast<int>(size), tag, memory, request);
    }
  }

  Result Receive(void* comm, Received& what, void** request) override {
    int n = static_cast<int>(what.data.size());
    void** memory = what.memory.data();
    CallScope scope(watch_, "irecv", true, Contract::kNeverBlocks);
    if constexpr (kVersion >= 10) {
      std::vector<void*> events(what.data.size());
      return table_.irecv(comm, n, what.data.data(), what.sizes.data(), what.tags.data(), memory,
                          events.data(), request);
    } else if constexpr (kVersion == 9) {
      return table_.irecv(comm, n, what.data.data(), what.sizes.data(), what.tags.data(), memory,
                          request);
    } else {
      std::vector<int> sizes(what.sizes.begin(), what.sizes.end());
      *request = nullptr;
      return table_.irecv(comm, n, what.data.data(), sizes.data(), what.tags.data(), memory,
                          request);
    }
  }

  Result Flush(void* comm, Received& what, void** request) override {
    CallScope scope(watch_, "iflush", true, Contract::kNeverBlocks);
    std::vector<int> sizes(what.sizes.begin(), what.sizes.end());
    *request = nullptr;
    return table_.iflush(comm, static_cast<int>(what.data.size()), what.data.data(), sizes.data(),
                         what.memory.data(), request);
  }

  Result Test(void* request, int* done, int* sizes) override {
    CallScope scope(watch_, "test", true, Contract::kNeverBlocks);
    return table_.test(request, done, sizes);
  }
  Result CloseSend(void* comm) override {
    CallScope scope(watch_, "closeSend", false);
    return table_.close_send(comm);
  }
  Result CloseReceive(void* comm) override {
    CallScope scope(watch_, "closeRecv", false);
    return table_.close_recv(comm);
  }
  Result CloseListen(void* comm) override {
    CallScope scope(watch_, "closeListen", false);
    return table_.close_listen(comm);
  }

 private:
  // A template, so that it is not looked at for versions whose listen has a context.
  template <typename T>
  static Result ListenPlain(const T& table, int device, void* handle, void** comm) {
    if constexpr (kVersion < 11) return table.listen(device, handle, comm);
    return nccl::abi::kInternalError;
  }

  const Table& table_;
  Watch& watch_;
  int alive_ = 0;  // up to v10
};

template <int kVersion>
std::unique_ptr<NetApi> OpenVersion(void* symbol, Watch& watch) {
  using Table = typename VersionTypes<kVersion>::Table;
  return std::make_unique<TableApi<kVersion>>(*static_cast<const Table*>(symbol), watch);
}

std::string SymbolOf(int version) { return absl::StrCat("ncclNetPlugin_v", version); }

}  // namespace

absl::StatusOr<Library> Library::Load(const std::string& name) {
  std::vector<std::string> names = {name};
  // NCCL's rule: a word that is neither a path nor shaped like lib*.so is a suffix.
  bool file = absl::StartsWith(name, "lib") && absl::EndsWith(name, ".so");
  if (!absl::StrContains(name, '/') && !file) {
    names.push_back(absl::StrCat("libnccl-net-", name, ".so"));
  }
  std::vector<std::string> said;
  for (const std::string& one : names) {
    if (void* handle = dlopen(one.c_str(), RTLD_NOW | RTLD_LOCAL)) return Library(handle, one);
    const char* error = dlerror();
    said.emplace_back(error == nullptr ? "?" : error);
  }
  return absl::NotFoundError(absl::StrCat("cannot load plugin \"", name,
                                          "\": ", absl::StrJoin(said, "; "),
                                          "; give a path, or set LD_LIBRARY_PATH"));
}

Library::Library(Library&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), path_(std::move(other.path_)) {}

Library::~Library() {
  if (handle_ != nullptr) dlclose(handle_);
}

void* Library::Symbol(const std::string& name) const { return dlsym(handle_, name.c_str()); }

std::vector<int> Library::versions() const {
  std::vector<int> out;
  for (int version = kVersionMin; version <= kVersionMax; ++version) {
    if (has(SymbolOf(version))) out.push_back(version);
  }
  return out;
}

std::unique_ptr<NetApi> Library::Open(int version, Watch& watch) const {
  void* symbol = dlsym(handle_, SymbolOf(version).c_str());
  if (symbol == nullptr) return nullptr;
  switch (version) {
    case 7:
      return OpenVersion<7>(symbol, watch);
    case 8:
      return OpenVersion<8>(symbol, watch);
    case 9:
      return OpenVersion<9>(symbol, watch);
    case 10:
      return OpenVersion<10>(symbol, watch);
    case 11:
      return OpenVersion<11>(symbol, watch);
    case 12:
      return OpenVersion<12>(symbol, watch);
    default:
      return nullptr;
  }
}

}  // namespace weft::harness
