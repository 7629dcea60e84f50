// An emulated libweft-cuda.so: the "GPU's" memory is the process's own, streams are threads that do
// what they are given in order and later, and NCCL's ranks are processes of this host that meet in
// shared memory. What the engine reads before it has waited is not there yet.
//
// Events and the default stream (null) follow CUDA: a stream waits for what was recorded when it
// was told to. Reductions know float32; what only moves knows every type. With
// EMULATED_NCCL_STOPS_AT=N, the Nth collective of rank 1 of a group, and what follows, never ends.
// With EMULATED_NCCL_NEVER_MEETS=1 no communicator's ranks come together.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/cuda/device_table.h"
#include "collectives/data_type.h"
#include "tests/collectives/cuda/scripted_table.h"

using Clock = std::chrono::steady_clock;

struct WeftEvent {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, done = 0;
  Clock::time_point at;
};

struct WeftStream {
  WeftStream() : thread([this] { Run(); }) {}
  ~WeftStream() {
    Push(nullptr);
    thread.join();
  }
  void Push(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex);
    works.push_back(std::move(work));
    changed.notify_all();
  }
  void Run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return !works.empty(); });
      const std::function<void()> work = std::move(works.front());
      lock.unlock();
      if (work == nullptr) return;
      work();
      lock.lock();
      works.pop_front();
      changed.notify_all();
    }
  }
  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return works.empty(); });
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> works;  // the first is being done
  std::thread thread;                       // last: uses the others
};

namespace {

using weft::collectives::DataType;
using weft::collectives::ReduceOp;

constexpr size_t kSlotBytes = size_t{1} << 20;  // of each rank
constexpr int kRanksMax = 16;

struct Meeting {
  std::atomic<int> arrived, generation;
  std::array<std::atomic<size_t>, kRanksMax> words;
  std::array<std::array<char, kSlotBytes>, kRanksMax> slots;
};

thread_local std::string last_error;
int Fail(const std::string& what) {
  last_error = what;
  return 1;
}

size_t Bytes(int type) {
  constexpr std::array<size_t, 12> kBytes = {1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return kBytes.at(static_cast<size_t>(type));
}

}  // namespace

struct WeftNcclCommunicator {
  Meeting* meeting = nullptr;
  int rank = 0, size = 1;
  std::atomic<bool> aborted = false, stops = false;
  int calls = 0;

  void Count() {
    const char* at = std::getenv("EMULATED_NCCL_STOPS_AT");
    if (rank == 1 && at != nullptr && ++calls == std::atoi(at)) stops = true;
  }

  // False: aborted.
  bool Meet() {
    while (stops.load() && !aborted.load()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const int generation = meeting->generation.load();
    if (meeting->arrived.fetch_add(1) + 1 == size) {
      meeting->arrived.store(0);
      meeting->generation.fetch_add(1);
      return true;
    }
    while (meeting->generation.load() == generation) {
      if (aborted.load()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }
  char* Slot(int of) { return meeting->slots[static_cast<size_t>(of)].data(); }
};

namespace {

std::atomic<int> works_under_way = 0;  // of all communicators of this process

void Give(WeftStream* stream, std::function<void()> work) {
  ++works_under_way;
  stream->Push([work = std::move(work)] {
    work();
    --works_under_way;
  });
}

// Moves `count` elements of a rank in pieces: each rank copies its `parts` of a piece into its
// slot, all meet, `read` takes from all slots what it wants, and all meet again.
void InPieces(WeftNcclCommunicator* group, const char* input, size_t count, size_t bytes, int parts,
              const std::function<void(size_t begin, size_t elements)>& read) {
  const size_t most = kSlotBytes / bytes / static_cast<size_t>(parts);
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t elements = std::min(most, count - begin);
    for (int part = 0; part < parts; ++part) {
      const size_t from = static_cast<size_t>(part) * count + begin;
      std::memcpy(group->Slot(group->rank) + static_cast<size_t>(part) * elements * bytes,
                  input + from * bytes, elements * bytes);
    }
    if (!group->Meet()) return;
    read(begin, elements);
    if (!group->Meet()) return;
  }
}

void AddUp(WeftNcclCommunicator* group, size_t first, size_t elements, int op, float* out) {
  const float scale =
      op == static_cast<int>(ReduceOp::kAverage) ? 1.0F / static_cast<float>(group->size) : 1.0F;
  for (size_t i = 0; i < elements; ++i) {
    float sum = 0;
    for (int rank = 0; rank < group->size; ++rank) {
      sum += reinterpret_cast<const float*>(group->Slot(rank))[first + i];
    }
    out[i] = sum * scale;
  }
}

int AllReduce(WeftNcclCommunicator* group, const void* input, void* output, size_t count, int type,
              int op, WeftStream* stream) {
  if (static_cast<DataType>(type) != DataType::kFloat32) return Fail("no such number type");
  group->Count();
  Give(stream, [=] {
    InPieces(group, static_cast<const char*>(input), count, sizeof(float), 1,
             [&](size_t begin, size_t elements) {
               AddUp(group, 0, elements, op, static_cast<float*>(output) + begin);
             });
  });
  return 0;
}

int ReduceScatter(WeftNcclCommunicator* group, const void* input, void* output, size_t count,
                  int type, int op, WeftStream* stream) {
  if (static_cast<DataType>(type) != DataType::kFloat32) return Fail("no such number type");
  group->Count();
  Give(stream, [=] {
    InPieces(group, static_cast<const char*>(input), count, sizeof(float), group->size,
             [&](size_t begin, size_t elements) {
               AddUp(group, static_cast<size_t>(group->rank) * elements, elements, op,
                     static_cast<float*>(output) + begin);
             });
  });
  return 0;
}

int AllGather(WeftNcclCommunicator* group, const void* input, void* output, size_t count, int type,
              WeftStream* stream) {
  group->Count();
  Give(stream, [=] {
    const size_t bytes = Bytes(type);
    InPieces(group, static_cast<const char*>(input), count, bytes, 1,
             [&](size_t begin, size_t elements) {
               for (int rank = 0; rank < group->size; ++rank) {
                 const size_t at = static_cast<size_t>(rank) * count + begin;
                 std::memcpy(static_cast<char*>(output) + at * bytes, group->Slot(rank),
                             elements * bytes);
               }
             });
  });
  return 0;
}

// Rounds in which each rank's slot has an equal share for every other.
int Exchange(WeftNcclCommunicator* group, const void* input, const size_t* input_counts,
             const size_t* input_begins, void* output, const size_t* output_counts,
             const size_t* output_begins, int size, int type, WeftStream* stream) {
  const std::vector<size_t> out(input_counts, input_counts + size),
      out_at(input_begins, input_begins + size), in(output_counts, output_counts + size),
      in_at(output_begins, output_begins + size);
  group->Count();
  Give(stream, [=] {
    const size_t bytes = Bytes(type), share = kSlotBytes / static_cast<size_t>(size) / bytes;
    group->meeting->words[static_cast<size_t>(group->rank)] =
        *std::max_element(out.begin(), out.end());
    if (!group->Meet()) return;
    size_t longest = 0;
    for (int rank = 0; rank < size; ++rank) {
      longest = std::max(longest, group->meeting->words[static_cast<size_t>(rank)].load());
    }
    for (size_t begin = 0; begin < longest; begin += share) {
      for (int peer = 0; peer < size; ++peer) {
        const auto p = static_cast<size_t>(peer);
        if (out[p] <= begin) continue;
        std::memcpy(group->Slot(group->rank) + p * share * bytes,
                    static_cast<const char*>(input) + (out_at[p] + begin) * bytes,
                    std::min(share, out[p] - begin) * bytes);
      }
      if (!group->Meet()) return;
      for (int peer = 0; peer < size; ++peer) {
        const auto p = static_cast<size_t>(peer);
        if (in[p] <= begin) continue;
        std::memcpy(static_cast<char*>(output) + (in_at[p] + begin) * bytes,
                    group->Slot(peer) + static_cast<size_t>(group->rank) * share * bytes,
                    std::min(share, in[p] - begin) * bytes);
      }
      if (!group->Meet()) return;
    }
    (void)group->Meet();
  });
  return 0;
}

// An id is a name in /dev/shm.
int UniqueId(uint8_t* id) {
  static std::atomic<int> number = 0;
  std::memset(id, 0, kWeftNcclIdBytes);
  std::snprintf(reinterpret_cast<char*>(id), kWeftNcclIdBytes, "/weft-emulated-nccl-%d-%d",
                getpid(), ++number);
  return 0;
}

int Init(WeftNcclCommunicator** made, int size, const uint8_t* ids, int, int rank) {
  if (size > kRanksMax) return Fail("too many ranks");
  if (std::getenv("EMULATED_NCCL_NEVER_MEETS") != nullptr) {
    for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  const char* name = reinterpret_cast<const char*>(ids);
  const int file = shm_open(name, O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, sizeof(Meeting)) != 0) return Fail("no shared memory");
  void* memory = mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return Fail("no shared memory");
  auto* group = new WeftNcclCommunicator;
  group->meeting = static_cast<Meeting*>(memory);
  group->rank = rank;
  group->size = size;
  (void)group->Meet();
  shm_unlink(name);
  return (*made = group), 0;
}

// As NCCL's: tells the works of all these to end, and waits for the device, which may be at the
// work of a communicator that is not one of them. The objects stay.
int Abort(WeftNcclCommunicator* const* groups, int count) {
  for (int i = 0; i < count; ++i) groups[i]->aborted.store(true);
  while (works_under_way.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}

int Record(WeftEvent* event, WeftStream* stream) {
  uint64_t number;
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    number = ++event->recorded;
  }
  auto happen = [event, number] {
    const std::lock_guard<std::mutex> lock(event->mutex);
    event->done = std::max(event->done, number);
    event->at = Clock::now();
    event->changed.notify_all();
  };
  stream == nullptr ? happen() : stream->Push(happen);
  return 0;
}

int WaitEvent(WeftStream* stream, WeftEvent* event) {
  uint64_t number;
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    number = event->recorded;
  }
  auto wait = [event, number] {
    std::unique_lock<std::mutex> lock(event->mutex);
    event->changed.wait(lock, [&] { return event->done >= number; });
  };
  stream == nullptr ? wait() : stream->Push(wait);
  return 0;
}

WeftDeviceTable Table() {
  WeftDeviceTable t = weft::ScriptedTable();
  t.LastError = [] { return last_error.c_str(); };
  t.DeviceCount = [](int* count) { return (*count = kRanksMax), 0; };
  t.SetDevice = [](int) { return 0; };
  t.DeviceName = [](int, char* name, size_t size) {
    return std::snprintf(name, size, "emulated"), 0;
  };
  t.Allocate = [](void** memory, size_t size) { return (*memory = std::malloc(size)), 0; };
  t.Free = [](void* memory) { return std::free(memory), 0; };
  t.StreamCreate = [](WeftStream** stream, int) { return (*stream = new WeftStream), 0; };
  t.StreamDestroy = [](WeftStream* stream) { return delete stream, 0; };
  t.StreamSynchronize = [](WeftStream* stream) { return stream->Synchronize(), 0; };
  t.StreamWaitEvent = WaitEvent;
  t.EventCreate = [](WeftEvent** event) { return (*event = new WeftEvent), 0; };
  t.EventDestroy = [](WeftEvent* event) { return delete event, 0; };
  t.EventRecord = Record;
  t.EventQuery = [](WeftEvent* event, int* done) {
    const std::lock_guard<std::mutex> lock(event->mutex);
    return (*done = event->done == event->recorded), 0;
  };
  t.EventElapsed = [](WeftEvent* from, WeftEvent* to, float* milliseconds) {
    return (*milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count()), 0;
  };
  t.NcclUniqueId = UniqueId;
  t.NcclInit = Init;
  t.NcclDestroy = [](WeftNcclCommunicator* group) {
    munmap(group->meeting, sizeof(Meeting));
    return delete group, 0;
  };
  t.NcclAbort = Abort;
  t.NcclAsyncError = [](WeftNcclCommunicator*) { return 0; };
  t.NcclAllReduce = AllReduce;
  t.NcclAllGather = AllGather;
  t.NcclReduceScatter = ReduceScatter;
  t.NcclExchange = Exchange;
  return t;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const WeftDeviceTable* weft_device_table() {
  static const WeftDeviceTable table = Table();
  return &table;
}
