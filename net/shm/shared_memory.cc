#include "net/shm/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/status.h"

namespace weft::net::shm {
namespace {

constexpr size_t kSharedMin = 64 << 10;  // smaller ones are not worth a descriptor

// What goes over the socket, with the descriptor.
struct ShowPacket {
  uint32_t magic = 0x52485357;  // "WSHR"
  uint32_t share = 0;
  uint64_t bytes = 0;
};

struct Registry {
  std::mutex mutex;
  std::map<const std::byte*, std::weak_ptr<SharedMemory>> by_address;
  std::atomic<uint64_t> living{0};
  std::atomic<uint64_t> gone{0};
};

Registry& TheRegistry() {
  static auto* registry = new Registry;  // outlives whatever a program keeps to its end
  return *registry;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SharedMemory>> SharedMemory::Create(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("shared memory of 0 bytes");
  const uint64_t whole = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto memory = std::shared_ptr<SharedMemory>(new SharedMemory);
  WEFT_ASSIGN_OR_RETURN(memory->fd_, CreateSealedMemory("weft-buffer", whole));
  WEFT_ASSIGN_OR_RETURN(memory->mapping_, Mapping::Map(memory->fd_.get(), whole));
  madvise(memory->data(), whole, MADV_HUGEPAGE);  // where the kernel has them for shared memory
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.by_address[memory->data()] = memory;
  ++registry.living;
  return memory;
}

SharedMemory::~SharedMemory() {
  if (data() == nullptr) return;
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.by_address.erase(data());
  --registry.living;
  ++registry.gone;
}

std::shared_ptr<SharedMemory> SharedMemory::Find(const std::byte* data, uint64_t bytes) {
  Registry& registry = TheRegistry();
  if (registry.living.load(std::memory_order_relaxed) == 0) return nullptr;
  std::shared_ptr<SharedMemory> memory;  // perhaps the last: its destructor locks the mutex
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    auto next = registry.by_address.upper_bound(data);
    if (next == registry.by_address.begin()) return nullptr;
    memory = std::prev(next)->second.lock();
  }
  if (memory == nullptr) return nullptr;
  const auto offset = static_cast<uint64_t>(data - memory->data());
  return offset <= memory->bytes() && bytes <= memory->bytes() - offset ? memory : nullptr;
}

uint64_t SharedMemory::gone() { return TheRegistry().gone.load(std::memory_order_relaxed); }

std::shared_ptr<std::byte> AllocateMemory(size_t bytes) {
  if (bytes >= kSharedMin) {
    absl::StatusOr<std::shared_ptr<SharedMemory>> memory = SharedMemory::Create(bytes);
    // The kernel gives the lowest number that is free.
    if (memory.ok() && (*memory)->fd() < OpenFilesLimit() / 2) return {*memory, (*memory)->data()};
    WEFT_LOG_DEBUG("shm: ",
                   memory.ok() ? "links and files need the descriptors that are left"
                               : memory.status().message(),
                   "; this memory is copied for peers");
  }
  const size_t whole = std::max<size_t>((bytes + kPageBytes - 1) / kPageBytes, 1) * kPageBytes;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, whole));
  if (data == nullptr) return nullptr;
  std::memset(data, 0, whole);
  return {data, [](std::byte* memory) { std::free(memory); }};
}

std::optional<SharedPlace> SharesShown::Show(const std::shared_ptr<SharedMemory>& memory,
                                             const std::byte* data, int socket) {
  const SharedPlace place{0, static_cast<uint64_t>(data - memory->data())};
  if (refused_) return std::nullopt;
  auto found = shown_.find(memory.get());
  // Another may lie at the address of one that has gone: its number is taken back first.
  if (found != shown_.end() && found->second.memory.expired()) return std::nullopt;
  if (found == shown_.end()) {
    if (shown_.size() >= kMost) return std::nullopt;
    const ShowPacket packet{.share = next_, .bytes = memory->bytes()};
    const int fd = memory->fd();
    auto sent = SendPacket(
        socket, absl::string_view(reinterpret_cast<const char*>(&packet), sizeof packet), {&fd, 1});
    if (!sent.ok() || !*sent) return std::nullopt;  // a socket that is lost says so itself
    found = shown_.emplace(memory.get(), Shown{next_++, memory}).first;
  }
  return SharedPlace{found->second.share, place.offset};
}

uint32_t SharesShown::TakeGone() {
  const uint64_t gone = SharedMemory::gone();
  if (gone == gone_seen_ || shown_.empty()) return 0;
  for (auto one = shown_.begin(); one != shown_.end(); ++one) {
    if (!one->second.memory.expired()) continue;
    const uint32_t share = one->second.share;
    shown_.erase(one);
    return share;
  }
  gone_seen_ = gone;
  return 0;
}

absl::Status SharesSeen::Take(const Packet& packet) {
  ShowPacket show;
  if (packet.bytes.size() != sizeof show || packet.fds.size() != 1) {
    return absl::DataLossError(absl::StrCat("a packet of ", packet.bytes.size(), " bytes and ",
                                            packet.fds.size(), " descriptors on a link's socket"));
  }
  std::memcpy(&show, packet.bytes.data(), sizeof show);
  if (show.magic != ShowPacket().magic || show.share == 0 || seen_.size() >= kMost ||
      seen_.contains(show.share)) {
    return absl::DataLossError(
        absl::StrCat("memory number ", show.share, " shown on a link's socket"));
  }
  absl::StatusOr<uint64_t> bytes = CheckSealedMemory(packet.fds[0].get());
  if (!bytes.ok() || *bytes != show.bytes) {
    return absl::DataLossError(
        bytes.ok() ? absl::StrCat("memory of ", *bytes, " bytes shown as ", show.bytes)
                   : std::string(bytes.status().message()));
  }
  absl::StatusOr<Mapping> mapping = Mapping::Map(packet.fds[0].get(), *bytes, PROT_READ);
  if (!mapping.ok()) {  // no address space: its messages come another way
    WEFT_LOG_DEBUG("shm: ", mapping.status().message());
    return absl::OkStatus();
  }
  seen_[show.share] = std::make_shared<const Mapping>(*std::move(mapping));
  return absl::OkStatus();
}

std::shared_ptr<const Mapping> SharesSeen::Find(uint32_t share) const {
  const auto found = seen_.find(share);
  return found == seen_.end() ? nullptr : found->second;
}

}  // namespace weft::net::shm
