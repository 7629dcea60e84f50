// A net plugin that breaks one contract on purpose, so that the harness can be seen to notice: the
// table v11 of the plugin that BROKEN_PLUGIN_WRAPS names, with the fault that BROKEN_PLUGIN_FAULT
// names (a contract's name; empty: none). One library for all faults, chosen as it is loaded. Two
// more break no contract: "slow" sleeps for 10 ms in each isend, "endless-load" is never loaded.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "plugins/nccl/abi/net.h"

namespace {

using namespace weft::nccl::abi;  // NOLINT(google-build-using-namespace)

const NetV11* inner;
const char* fault = "";  // set before any constructor of this library runs
bool Is(const char* name) { return std::strcmp(fault, name) == 0; }

// Faults that would make messages of other sizes fail in another way keep to these.
constexpr size_t kEarlySend = 1 << 20, kEarlyReceive = 64 << 10, kSwapped = 4096;

// A request of the wrapped plugin, which may not have been made yet.
struct Request {
  void* comm = nullptr;
  void* request = nullptr;
  bool send = false, held = false, early = false, stuck = false;
  int count = 1;
  std::vector<void*> data, memory;
  std::vector<size_t> sizes;
  std::vector<int> tags;
};

struct Comm {
  int sends = 0, receives = 0, outstanding = 0;
  Request* held = nullptr;
};

std::mutex mutex;  // of all below
std::map<void*, Comm> comms;
std::vector<Request*> early;  // said to be done, and not done
std::vector<void*> registered;
int alive = 0, inits = 0, device_calls = 0, virtual_devices = 0, receives = 0, sends = 0;
std::atomic<int> in_flight{0};
std::atomic<bool> driving{false};
std::thread driver;

Result Repost(Request& one) {
  if (one.send) {
    return inner->isend(one.comm, one.data[0], one.sizes[0], one.tags[0], one.memory[0], nullptr,
                        &one.request);
  }
  std::vector<void*> events(one.data.size());
  return inner->irecv(one.comm, one.count, one.data.data(), one.sizes.data(), one.tags.data(),
                      one.memory.data(), events.data(), &one.request);
}

// Goes on with what was said to be done already.
void Drive() {
  while (driving) {
    {
      std::lock_guard lock(mutex);
      for (Request*& one : early) {
        int done = 0;
        int sizes[64];
        if (one == nullptr || inner->test(one->request, &done, sizes) != kSuccess || done != 0) {
          one = nullptr;
        }
      }
      early.erase(std::remove(early.begin(), early.end(), nullptr), early.end());
    }
    usleep(1000);
  }
}

Result Init(void** context, uint64_t comm_id, CommConfig* config, LogFunction log,
            ProfilerFunction profiler) {
  std::lock_guard lock(mutex);
  ++inits;
  if (Is("init-each") && alive > 0) return kSystemError;
  if (Is("init-again") && alive == 0 && inits > 1) return kSystemError;
  ++alive;
  if (Is("threads-returned")) std::thread([] { sleep(1000); }).detach();
  bool needs_driver = Is("send-done-frees-buffer") || Is("receive-done-means-data");
  if (needs_driver && !driving.exchange(true)) driver = std::thread(Drive);
  return inner->init(context, comm_id, config, log, profiler);
}

Result Finalize(void* context) {
  if (Is("finalize-null") && context == nullptr) abort();
  bool last = false;
  {
    std::lock_guard lock(mutex);
    last = context != nullptr && --alive == 0;
  }
  if (last && driving.exchange(false)) driver.join();
  return inner->finalize(context);
}

Result Devices(int* count) {
  Result result = inner->devices(count);
  if (Is("devices-stable")) *count += device_calls++;
  *count += virtual_devices;
  return result;
}

Result GetProperties(int device, PropertiesV11* properties) {
  if (Is("no-crash")) abort();
  Result result = inner->get_properties(device, properties);
  if (Is("properties-valid")) properties->max_p2p_bytes = 0;
  if (Is("properties-stable")) {
    static char name[32];
    static int calls = 0;
    std::snprintf(name, sizeof(name), "net%d", calls++);
    properties->name = name;
  }
  if (Is("properties-size")) std::memset(properties + 1, 0, 8);
  return result;
}

Result MakeVirtualDevice(int* /*device*/, VirtualDeviceV9* /*parts*/) {
  if (Is("virtual-device-fails")) ++virtual_devices;
  return kInvalidUsage;
}

Result Listen(void* context, int device, void* handle, void** comm) {
  Result result = inner->listen(context, device, handle, comm);
  if (Is("listen-at-once")) *comm = nullptr;
  if (Is("handle-size")) static_cast<char*>(handle)[kHandleBytes] = 1;
  return result;
}

Result Connect(void* context, int device, void* handle, void** comm, DeviceHandle** device_handle) {
  if (Is("connects")) {
    *comm = nullptr;
    return kSuccess;
  }
  if (static std::atomic<int> calls{0}; Is("never-blocks") && calls++ == 0) usleep(300'000);
  Result result = inner->connect(context, device, handle, comm, device_handle);
  if (Is("not-yet-is-success") && result == kSuccess && *comm == nullptr) return kInProgress;
  static DeviceHandle junk;
  if (Is("device-handle-untouched") && device_handle != nullptr) *device_handle = &junk;
  if (Is("descriptors-returned") && *comm != nullptr) (void)open("/dev/null", O_RDONLY);
  return result;
}

Result Accept(void* listen, void** comm, DeviceHandle** device_handle) {
  return inner->accept(listen, comm, device_handle);
}

Result Register(void* comm, void* data, size_t size, int type, void** memory) {
  if (Is("register-any-time") && in_flight > 0) return kInternalError;
  if (Is("register-again")) {
    std::lock_guard lock(mutex);
    if (std::find(registered.begin(), registered.end(), data) != registered.end()) {
      return kInternalError;
    }
    registered.push_back(data);
  }
  return inner->reg_mr(comm, data, size, type, memory);
}

Result Deregister(void* comm, void* memory) {
  if (Is("close-delivers")) return kSuccess;  // a send that is held seems done, and needs it
  return inner->dereg_mr(comm, memory);
}

void Take(Comm& comm, Request* one, void** request) {
  ++comm.outstanding;
  ++in_flight;
  *request = one;
}

Result Send(void* send_comm, void* data, size_t size, int tag, void* memory, void* /*event*/,
            void** request) {
  if (Is("slow")) usleep(10'000);
  std::lock_guard lock(mutex);
  *request = nullptr;
  Comm& comm = comms[send_comm];
  if (Is("zero-bytes") && size == 0) return kInvalidArgument;
  if (Is("transient-is-success") && ++sends == 10) return kSystemError;
  auto* one = new Request{send_comm, nullptr, true};
  one->data = {data}, one->memory = {memory}, one->sizes = {size}, one->tags = {tag};
  if (Is("close-delivers") && comm.sends == 0) {
    ++comm.sends;
    one->held = true;
    comm.held = one;
    Take(comm, one, request);
    return kSuccess;
  }
  if (comm.held != nullptr && comm.held->send) {
    if (Result result = Repost(*comm.held); result != kSuccess) return result;
    if (comm.held->request == nullptr) return kSuccess;
    comm.held = nullptr;
  }
  Result result = Repost(*one);
  if (Is("peer-death-reported")) result = kSuccess;
  if (result != kSuccess || one->request == nullptr) {
    delete one;
    return result;
  }
  ++comm.sends;
  Take(comm, one, request);
  return kSuccess;
}

Result Receive(void* receive_comm, int n, void** data, size_t* sizes, int* tags, void** memory,
               void** /*events*/, void** request) {
  if (Is("request-overwritten") &&
      reinterpret_cast<uintptr_t>(*request) == kOptionalReceiveCompletion) {
    return kSuccess;
  }
  std::lock_guard lock(mutex);
  *request = nullptr;
  Comm& comm = comms[receive_comm];
  if (Is("requests-in-flight") && comm.outstanding >= 9) return kInternalError;
  auto* one = new Request{receive_comm, nullptr, false};
  one->count = n;
  one->data.assign(data, data + n), one->memory.assign(memory, memory + n);
  one->sizes.assign(sizes, sizes + n), one->tags.assign(tags, tags + n);
  if (Is("tags-pick-slots")) std::reverse(one->tags.begin(), one->tags.end());
  one->stuck = Is("completes") && ++receives == 20;
  if (Is("receives-in-order") && comm.held == nullptr && n == 1 && sizes[0] >= kSwapped) {
    comm.held = one;  // after the next
    one->held = true;
    Take(comm, one, request);
    return kSuccess;
  }
  Result result = Repost(*one);
  if (Is("peer-death-reported")) result = kSuccess;
  if (result != kSuccess || one->request == nullptr) {
    delete one;
    return result;
  }
  if (comm.held != nullptr) {
    result = Repost(*comm.held);
    comm.held->held = false;
    comm.held = nullptr;
  }
  Take(comm, one, request);
  return result;
}

Result TestSend(Request& one, int* done, int* sizes) {
  if (one.held) {  // told to be done, whenever it goes
    *done = 1;
    return kSuccess;
  }
  if (Is("send-done-frees-buffer") && one.sizes[0] >= kEarlySend) {
    early.push_back(&one);
    *done = 1;
    return kSuccess;
  }
  Result result = inner->test(one.request, done, sizes);
  if (*done != 0 && Is("sizes-of-send")) sizes[1] = 0;
  return result;
}

Result TestReceive(Request& one, int* done, int* sizes) {
  auto count = static_cast<size_t>(one.count);
  if (one.stuck) return kSuccess;
  if (one.held) {
    one.held = false;
    comms[one.comm].held = nullptr;
    if (Result result = Repost(one); result != kSuccess) return result;
  }
  if (Is("receive-done-means-data") && count == 1 && one.sizes[0] == kEarlyReceive) {
    early.push_back(&one);
    for (size_t i = 0; i < count; ++i) sizes[i] = static_cast<int>(one.sizes[i]);
    *done = 1;
    return kSuccess;
  }
  Result result = inner->test(one.request, done, sizes);
  if (*done == 0 || result != kSuccess) return result;
  for (size_t i = 0; i < count; ++i) {
    auto* bytes = static_cast<char*>(one.data[i]);
    if (Is("data-intact") && sizes[i] > 0) bytes[sizes[i] / 2] ^= 1;
    if (Is("writes-in-bounds")) bytes[one.sizes[i]] = 0;
    if (Is("sizes-received")) sizes[i] = static_cast<int>(one.sizes[i]);
  }
  if (Is("sizes-in-group")) sizes[count] = 7;
  return result;
}

Result Test(void* request, int* done, int* sizes) {
  std::lock_guard lock(mutex);
  *done = 0;
  auto* one = static_cast<Request*>(request);
  Result result = one->send ? TestSend(*one, done, sizes) : TestReceive(*one, done, sizes);
  if (Is("peer-death-reported") && result != kSuccess) {
    one->stuck = true;
    *done = 0;
    return kSuccess;
  }
  if (*done != 0) {
    --comms[one->comm].outstanding;
    --in_flight;
  }
  return result;
}

void Forget(void* comm) {
  std::lock_guard lock(mutex);
  comms.erase(comm);
  std::erase_if(early, [comm](const Request* one) { return one->comm == comm; });
}

Result CloseSend(void* comm) {
  Forget(comm);
  return inner->close_send(comm);
}
Result CloseReceive(void* comm) {
  Forget(comm);
  return inner->close_recv(comm);
}
Result CloseListen(void* comm) {
  Result result = inner->close_listen(comm);
  return Is("listen-closes-early") ? kSystemError : result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) NetV11 ncclNetPlugin_v11;  // NOLINT
NetV11 ncclNetPlugin_v11 = {
    "broken",     Init,        Devices,    GetProperties, Listen,  Connect,  Accept,  // NOLINT
    Register,     nullptr,     Deregister, Send,          Receive, nullptr,  Test,   CloseSend,
    CloseReceive, CloseListen, nullptr,    nullptr,       nullptr, Finalize, nullptr};

__attribute__((constructor)) static void Load() {
  const char* path = getenv("BROKEN_PLUGIN_WRAPS");
  const char* name = getenv("BROKEN_PLUGIN_FAULT");
  fault = name == nullptr ? "" : strdup(name);
  while (Is("endless-load")) pause();
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) inner = static_cast<const NetV11*>(dlsym(library, "ncclNetPlugin_v11"));
  if (inner == nullptr) {
    std::fprintf(stderr, "BROKEN_PLUGIN_WRAPS names no plugin with a table v11\n");
    abort();
  }
  if (Is("table-complete")) ncclNetPlugin_v11.isend = nullptr;
  if (Is("virtual-device-fails") || Is("virtual-device-of-one")) {
    ncclNetPlugin_v11.make_virtual_device = MakeVirtualDevice;
  }
}
