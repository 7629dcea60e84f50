#include "plugins/nccl/net.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "net/handshake.h"
#include "plugins/nccl/comm.h"
#include "plugins/nccl/log.h"
#include "plugins/nccl/profiled_link.h"
#include "plugins/nccl/set_up_log.h"

namespace weft::nccl {

struct Context {
  uint64_t comm_id = 0;
  Scope scope;
  std::mutex mutex;
  std::map<uint64_t, std::unique_ptr<SendComm>> attempts;  // by Handle::attempt
};

namespace {

constexpr size_t kMessageBytesMax = size_t{1} << 30;                 // that NCCL is told of
constexpr size_t kTestedBytesMax = std::numeric_limits<int>::max();  // that test() can tell of

struct Process {
  std::mutex mutex;  // of Init
  PeerInfo self;
  std::unique_ptr<Settings> settings;
  std::unique_ptr<Backend> owner;
  std::atomic<Backend*> backend{nullptr};  // null until Init has succeeded
  std::atomic<uint64_t> attempts{0};
  std::atomic<uint64_t> scopes{0};
  std::atomic<int> contexts{0};
  // One context stands, the first after all others have gone, and nothing was asked of devices
  // since. NCCL (from 2.28 on) asks for their number next where it has loaded the plugin anew, and
  // for properties where it still knows them (NCCL_NET_PLUGIN_REF_COUNT=1). Up to 2.27, which has
  // no contexts, it knows them as long as the process lives.
  std::atomic<bool> may_count_anew{false};
  std::atomic<abi::ProfilerFunction> profiler{nullptr};
  SetUpLog set_up;
  Context shared;
};

Process& TheProcess() {
  // Never deleted: NCCL's threads may outlive static objects, and call until the process is gone.
  static Process* const process = new Process;
  struct Guard {
    ~Guard() {
      if (Backend* backend = process->backend.load()) backend->EndIdleProgress();
    }
  };
  static const Guard guard;
  return *process;
}

absl::Time Now() { return SystemClock().Now(); }

// Logs the set-up times of an end that is established now.
void NoteSetUp(const SetUpTimes& times, SetUpPhase first, absl::Time now) {
  SetUpLog& log = TheProcess().set_up;
  log.Add(first, times.begun, times.connected);
  log.Add(SetUpPhase::kGreeting, times.connected, now);
  log.AddConnection(times.begun, now);
}

void SaySetUp(absl::Time now, bool final) {
  const std::string line = TheProcess().set_up.TakeLine(now, final);
  if (!line.empty()) LogInfo(line);
}

// Tells NCCL's profiler how the link is that carries this message; now and then.
void SayLink(Comm& comm, void* event, absl::Time now) {
  const abi::ProfilerFunction profiler = TheProcess().profiler.load(std::memory_order_relaxed);
  if (profiler == nullptr || event == nullptr) return;
  ProfiledLink link;
  if (!comm.TakeLinkState(now, &link)) return;
  constexpr int kStart = 0;
  void* handle = nullptr;  // the event has no end
  profiler(&handle, kStart, event, kNetEventId, &link);
}

template <typename Function>
abi::Result Guarded(const char* call, Function function) {
  try {
    absl::Status status = function();
    return status.ok() ? abi::kSuccess : Fail(call, status);
  } catch (const std::exception& error) {
    return Fail(call, absl::InternalError(error.what()));
  }
}

absl::StatusOr<Backend*> ReadyBackend() {
  if (Backend* backend = TheProcess().backend.load(std::memory_order_acquire)) return backend;
  return absl::FailedPreconditionError("called before init, or after an init that failed");
}

PeerInfo SelfOn(const Backend& backend, int device) {
  PeerInfo self = TheProcess().self;
  self.device = backend.devices()[device].name;
  self.transport = NameOf(backend);
  self.grouped_receives = abi::kGroupedReceivesMax;
  return self;
}

absl::Status InitOnce(int table) {
  Process& process = TheProcess();
  std::lock_guard lock(process.mutex);
  if (process.backend.load() != nullptr) return absl::OkStatus();
  std::string why;
  WEFT_ASSIGN_OR_RETURN(process.self, ThisProcess());
  WEFT_ASSIGN_OR_RETURN(Settings settings, PluginSettings(&why));
  WEFT_ASSIGN_OR_RETURN(process.owner, ChooseBackend(settings, &why));
  process.settings = std::make_unique<Settings>(settings);
  std::string list;
  for (int i = 0; i < static_cast<int>(process.owner->devices().size()); ++i) {
    const Device& device = process.owner->devices()[i];
    absl::StrAppend(&list, " [", i, "]", device.name,
                    device.address.size() > 0 ? absl::StrCat(":", device.address.ToString()) : "",
                    "/", device.speed_mbps / 1000, "Gb/s");
  }
  LogInfo(absl::StrCat("version ", process.self.version, ", table v", table, ", transport ",
                       NameOf(*process.owner), ", devices", list, " (", why, "), ",
                       process.owner->Describe()));
  process.backend.store(process.owner.get(), std::memory_order_release);
  return absl::OkStatus();
}

template <typename Size>
absl::StatusOr<std::vector<ReceivePart>> PartsOf(int count, void** data, const Size* sizes,
                                                 const int* tags, void** memory) {
  if (count < 1 || count > abi::kGroupedReceivesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a group of ", count, " receives; 1 to ",
                                                   abi::kGroupedReceivesMax, " are possible"));
  }
  std::vector<ReceivePart> parts(static_cast<size_t>(count));
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = {data[i], static_cast<size_t>(sizes[i]), tags == nullptr ? 0 : tags[i],
                static_cast<MemoryHandle*>(memory[i])};
  }
  return parts;
}

// NCCL's handle memory has no alignment of its own.
Handle ReadHandle(const void* memory) {
  Handle handle;
  std::memcpy(&handle, memory, sizeof(handle));
  return handle;
}
// 0: none has begun. In what is no handle of this protocol anything may lie there.
uint64_t AttemptOf(const Handle& handle) {
  const bool ours = handle.magic == kHandleMagic && handle.protocol == kPluginProtocol;
  return ours ? handle.attempt : 0;
}
void WriteAttempt(void* memory, uint64_t attempt) {
  std::memcpy(static_cast<char*>(memory) + offsetof(Handle, attempt), &attempt, sizeof(attempt));
}

// -1: it has none.
absl::StatusOr<int> TrafficClassOf(const abi::CommConfig* config) {
  if (config == nullptr || config->traffic_class < 0) return -1;
  if (config->traffic_class <= 255) return config->traffic_class;
  return absl::InvalidArgumentError(absl::StrCat("the communicator's trafficClass is ",
                                                 config->traffic_class,
                                                 "; right is 0 to 255, or -1 for none"));
}

absl::StatusOr<std::unique_ptr<SendComm>> BeginAttempt(const Scope& scope, int device,
                                                       const Handle& handle, absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(Backend * backend, ReadyBackend());
  WEFT_RETURN_IF_ERROR(backend->devices().Check(device));
  PeerInfo self = SelfOn(*backend, device);
  WEFT_RETURN_IF_ERROR(CheckHandle(handle, self));
  absl::Status mismatch = CheckTransport(handle, backend->transport(), self);
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<SendConnection> connection,
                        mismatch.ok()
                            ? backend->Connect(scope, device, handle, now)
                            : ConnectToBeRefused(backend->transport(), *TheProcess().settings,
                                                 backend->devices()[device], handle, now));
  return std::make_unique<SendComm>(*backend, std::move(self), ListenerOf(handle),
                                    std::move(connection), now, std::move(mismatch));
}

// Communicators may share a context: their threads keep and take attempts at the same time.
void KeepAttempt(Context& context, uint64_t attempt, std::unique_ptr<SendComm> comm,
                 absl::Time now) {
  std::lock_guard lock(context.mutex);
  // Tables without finalize (up to v10) never say that a connection was given up. The oldest first.
  std::map<uint64_t, std::unique_ptr<SendComm>>& all = context.attempts;
  while (!all.empty() && all.begin()->second->Forgotten(now)) all.erase(all.begin());
  all[attempt] = std::move(comm);
}

absl::StatusOr<std::unique_ptr<SendComm>> TakeAttempt(Context& context, uint64_t attempt) {
  std::lock_guard lock(context.mutex);
  const auto found = context.attempts.extract(attempt);
  if (!found.empty()) return std::move(found.mapped());
  return absl::InvalidArgumentError(
      absl::StrCat("the handle names attempt ", attempt,
                   ", which is not one of this communicator's; was it copied after connect?"));
}

}  // namespace

Context* SharedContext() { return &TheProcess().shared; }

abi::Result Init(int table, abi::LogFunction log) {
  return Guarded("init", [&] {
    SetLogFunction(log);
    return InitOnce(table);
  });
}

abi::Result NewContext(uint64_t comm_id, const abi::CommConfig* config, void** context) {
  return Guarded("init", [&]() -> absl::Status {
    auto made = std::make_unique<Context>();
    made->comm_id = comm_id;
    made->scope.id = ++TheProcess().scopes;
    WEFT_ASSIGN_OR_RETURN(made->scope.traffic_class, TrafficClassOf(config));
    *context = made.release();
    TheProcess().may_count_anew = TheProcess().contexts++ == 0;
    return absl::OkStatus();
  });
}

abi::Result Finalize(void* context) {
  return Guarded("finalize", [&] {
    std::unique_ptr<Context> gone(static_cast<Context*>(context));
    if (gone != nullptr) --TheProcess().contexts;
    SaySetUp(Now(), /*final=*/true);
    return absl::OkStatus();
  });
}

abi::Result Devices(int* count) {
  return Guarded("devices", [&]() -> absl::Status {
    *count = 0;
    WEFT_ASSIGN_OR_RETURN(Backend * backend, ReadyBackend());
    if (TheProcess().may_count_anew.exchange(false)) backend->ForgetMerged();
    *count = static_cast<int>(backend->devices().size());
    return absl::OkStatus();
  });
}

abi::Result Properties(int device, abi::PropertiesV12* properties) {
  return Guarded("getProperties", [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(Backend * backend, ReadyBackend());
    TheProcess().may_count_anew = false;
    WEFT_RETURN_IF_ERROR(backend->devices().Check(device));
    const Device& one = backend->devices()[device];
    *properties = {};
    properties->name = const_cast<char*>(one.name.c_str());
    properties->pci_path = one.pci_path.empty() ? nullptr : const_cast<char*>(one.pci_path.c_str());
    properties->guid = one.guid;
    properties->ptr_support = one.pointers;
    properties->speed = one.speed_mbps;
    properties->port = one.port;
    properties->max_comms = one.connections_max;
    properties->max_recvs = abi::kGroupedReceivesMax;
    properties->device_type = abi::kDeviceHost;
    properties->virtual_device.count = 1;
    properties->virtual_device.devices[0] = device;
    if (!one.parts.empty()) {
      properties->virtual_device.count = static_cast<int>(one.parts.size());
      std::copy(one.parts.begin(), one.parts.end(), properties->virtual_device.devices);
    }
    properties->max_p2p_bytes = kMessageBytesMax;
    properties->max_coll_bytes = kMessageBytesMax;
    properties->max_multi_request_size = 1;
    properties->rail_id = abi::kIdUndefined;
    properties->plane_id = abi::kIdUndefined;
    return absl::OkStatus();
  });
}

abi::Result MakeVirtualDevice(int* device, const std::vector<int>& parts) {
  constexpr char kCall[] = "makeVDevice";
  absl::Status declined;
  abi::Result result = Guarded(kCall, [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(Backend * backend, ReadyBackend());
    TheProcess().may_count_anew = false;
    absl::StatusOr<int> merged = backend->Merge(parts);
    if (absl::IsUnimplemented(merged.status())) {
      declined = merged.status();
      return absl::OkStatus();
    }
    WEFT_ASSIGN_OR_RETURN(*device, merged);
    const Device& made = backend->devices()[*device];
    LogInfo(absl::StrCat("device [", *device, "]", made.name, "/", made.speed_mbps / 1000,
                         "Gb/s merges ", parts.size(), parts.size() == 1 ? " device" : " devices"));
    return absl::OkStatus();
  });
  return declined.ok() ? result : Decline(kCall, declined);
}

abi::Result Listen(Context* context, int device, void* handle, void** listen_comm) {
  return Guarded("listen", [&]() -> absl::Status {
    *listen_comm = nullptr;
    WEFT_ASSIGN_OR_RETURN(Backend * backend, ReadyBackend());
    WEFT_RETURN_IF_ERROR(backend->devices().Check(device));
    const absl::Time begin = Now();
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Listener> listener,
                          backend->Listen(context->scope, device));
    TheProcess().set_up.Add(SetUpPhase::kListen, begin, Now());
    PeerInfo self = SelfOn(*backend, device);
    Handle made = MakeHandle(backend->transport(), listener->address(), listener->secret(),
                             listener->number(), self);
    std::memcpy(handle, &made, sizeof(made));
    *listen_comm = new ListenComm(*backend, std::move(self), std::move(listener));
    return absl::OkStatus();
  });
}

abi::Result Connect(Context* context, int device, void* handle, void** send_comm,
                    const abi::CommConfig* config) {
  return Guarded("connect", [&]() -> absl::Status {
    *send_comm = nullptr;
    absl::Time now = Now();
    Scope scope = context->scope;
    if (config != nullptr) {
      WEFT_ASSIGN_OR_RETURN(scope.traffic_class, TrafficClassOf(config));
    }
    const Handle given = ReadHandle(handle);
    const uint64_t begun = AttemptOf(given);
    const uint64_t attempt = begun != 0 ? begun : ++TheProcess().attempts;
    WEFT_ASSIGN_OR_RETURN(
        std::unique_ptr<SendComm> comm,
        begun == 0 ? BeginAttempt(scope, device, given, now) : TakeAttempt(*context, begun));
    const absl::StatusOr<bool> connected = comm->Connect(now);
    const bool goes_on = connected.ok() && !*connected;
    WriteAttempt(handle, goes_on ? attempt : 0);  // 0: the handle can be used again
    if (!connected.ok()) return connected.status();
    if (goes_on) {
      KeepAttempt(*context, attempt, std::move(comm), now);
    } else {
      NoteSetUp(comm->set_up(), SetUpPhase::kHandshake, now);
      *send_comm = static_cast<Comm*>(comm.release());
    }
    return absl::OkStatus();
  });
}

abi::Result Accept(void* listen_comm, void** receive_comm) {
  return Guarded("accept", [&]() -> absl::Status {
    *receive_comm = nullptr;
    auto* listening = static_cast<ListenComm*>(listen_comm);
    const absl::Time now = Now();
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<ReceiveComm> comm, listening->Accept(now));
    if (comm != nullptr) NoteSetUp(comm->set_up(), SetUpPhase::kWaiting, now);
    *receive_comm = static_cast<Comm*>(comm.release());
    return absl::OkStatus();
  });
}

abi::Result RegisterMemory(void* comm, void* data, size_t size, int type, void** memory) {
  return Guarded("regMr", [&]() -> absl::Status {
    *memory = nullptr;
    auto* owner = static_cast<Comm*>(comm);
    const absl::Time begin = Now();
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MemoryHandle> made,
                          type == abi::kPointerHost ? owner->Register(data, size)
                                                    : owner->RegisterDevice({data, size}));
    TheProcess().set_up.Add(SetUpPhase::kMemory, begin, Now());
    *memory = made.release();
    return absl::OkStatus();
  });
}

abi::Result RegisterDmaBuf(void* comm, void* data, size_t size, int /*type*/, uint64_t offset,
                           int fd, void** memory) {
  return Guarded("regMrDmaBuf", [&]() -> absl::Status {
    *memory = nullptr;
    if (fd < 0) return absl::InvalidArgumentError(absl::StrCat("DMA-BUF descriptor ", fd));
    const absl::Time begin = Now();
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MemoryHandle> made,
                          static_cast<Comm*>(comm)->RegisterDevice({data, size, fd, offset}));
    TheProcess().set_up.Add(SetUpPhase::kMemory, begin, Now());
    *memory = made.release();
    return absl::OkStatus();
  });
}

abi::Result DeregisterMemory(void* comm, void* memory) {
  return Guarded("deregMr", [&] {
    static_cast<Comm*>(comm)->Deregister(
        std::unique_ptr<MemoryHandle>(static_cast<MemoryHandle*>(memory)));
    return absl::OkStatus();
  });
}

void SetProfiler(abi::ProfilerFunction profiler) {
  if (profiler != nullptr) TheProcess().profiler = profiler;
}

abi::Result Send(void* send_comm, void* data, size_t size, int tag, void* memory, void** request,
                 void* event) {
  return Guarded("isend", [&]() -> absl::Status {
    *request = nullptr;
    if (size > kTestedBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a message of ", size, " bytes; test can tell of ", kTestedBytesMax, " at most"));
    }
    auto* comm = static_cast<SendComm*>(static_cast<Comm*>(send_comm));
    const absl::Time now = Now();
    SaySetUp(now, /*final=*/false);
    WEFT_ASSIGN_OR_RETURN(CommRequest * made,
                          comm->Send(data, size, tag, static_cast<MemoryHandle*>(memory), now));
    *request = made;
    if (made != nullptr) SayLink(*comm, event, now);
    return absl::OkStatus();
  });
}

template <typename Size>
abi::Result Receive(void* receive_comm, int count, void** data, const Size* sizes, const int* tags,
                    void** memory, void** request, void* event) {
  return Guarded("irecv", [&]() -> absl::Status {
    *request = nullptr;  // whatever NCCL left there, such as kOptionalReceiveCompletion
    WEFT_ASSIGN_OR_RETURN(const std::vector<ReceivePart> parts,
                          PartsOf(count, data, sizes, tags, memory));
    auto* comm = static_cast<ReceiveComm*>(static_cast<Comm*>(receive_comm));
    const absl::Time now = Now();
    SaySetUp(now, /*final=*/false);
    WEFT_ASSIGN_OR_RETURN(CommRequest * made, comm->Receive(parts, now));
    *request = made;
    if (made != nullptr) SayLink(*comm, event, now);
    return absl::OkStatus();
  });
}
template abi::Result Receive<int>(void*, int, void**, const int*, const int*, void**, void**,
                                  void*);
template abi::Result Receive<size_t>(void*, int, void**, const size_t*, const int*, void**, void**,
                                     void*);

abi::Result Flush(void* receive_comm, int count, void** data, const int* sizes, void** memory,
                  void** request) {
  return Guarded("iflush", [&]() -> absl::Status {
    *request = nullptr;
    WEFT_ASSIGN_OR_RETURN(const std::vector<ReceivePart> parts,
                          PartsOf(count, data, sizes, /*tags=*/nullptr, memory));
    auto* comm = static_cast<ReceiveComm*>(static_cast<Comm*>(receive_comm));
    WEFT_ASSIGN_OR_RETURN(*request, comm->Flush(parts, Now()));
    return absl::OkStatus();
  });
}

abi::Result Test(void* request, int* done, int* sizes) {
  return Guarded("test", [&]() -> absl::Status {
    auto* one = static_cast<CommRequest*>(request);
    bool complete = false;
    absl::Status status = one->owner->Test(*one, &complete, sizes, Now());
    *done = complete ? 1 : 0;
    return status;
  });
}

abi::Result CloseSend(void* send_comm) {
  SaySetUp(Now(), /*final=*/true);
  delete static_cast<Comm*>(send_comm);
  return abi::kSuccess;
}
abi::Result CloseReceive(void* receive_comm) {
  SaySetUp(Now(), /*final=*/true);
  delete static_cast<Comm*>(receive_comm);
  return abi::kSuccess;
}
abi::Result CloseListen(void* listen_comm) {
  delete static_cast<ListenComm*>(listen_comm);
  return abi::kSuccess;
}

}  // namespace weft::nccl
