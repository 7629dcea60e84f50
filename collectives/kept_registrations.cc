#include "collectives/kept_registrations.h"

#include <iterator>
#include <utility>

#include "base/log.h"

namespace weft::collectives {

using net::shm::SharedMemory;

absl::StatusOr<net::Region> KeptRegistrations::Register(net::Transport& transport, int index,
                                                        void* data, size_t size) {
  DropGone();
  auto* bytes = static_cast<std::byte*>(data);
  Pieces::value_type* found = size > 0 && Serves(transport) ? Find(bytes, size) : nullptr;
  if (found == nullptr) return transport.Register(data, size);
  auto& [begin, piece] = *found;
  const auto t = static_cast<size_t>(index);
  net::Region& region = piece.regions[t];
  if (region.view().data() == nullptr && !piece.is_refused[t]) {
    auto whole = transport.Register(begin, piece.size);
    if (whole.ok()) {
      region = *std::move(whole);
    } else {
      piece.is_refused[t] = true;
      WEFT_LOG_DEBUG(whole.status().message(), "; parts of it are, for an operation each");
    }
  }
  if (piece.is_refused[t]) return transport.Register(data, size);
  return net::Region(bytes, size, nullptr);
}

KeptRegistrations::Pieces::value_type* KeptRegistrations::Find(std::byte* data, size_t size) {
  if (const std::shared_ptr<SharedMemory> memory = SharedMemory::Find(data, size)) {
    auto one = given_.try_emplace(memory->data()).first;
    // Another one may have lain there until a moment ago, which DropGone() could not see yet.
    if (one->second.memory.lock() != memory) {
      one->second = Piece{.memory = memory, .size = memory->bytes(), .regions = {}};
    }
    return &*one;
  }
  auto next = promised_.upper_bound(data);
  if (next == promised_.begin()) return nullptr;
  auto& [begin, piece] = *std::prev(next);
  const auto offset = static_cast<size_t>(data - begin);
  const bool holds = offset <= piece.size && size <= piece.size - offset;
  return holds ? &*std::prev(next) : nullptr;
}

bool KeptRegistrations::Add(std::byte* data, size_t size) {
  return promised_.try_emplace(data, Piece{.memory = {}, .size = size, .regions = {}}).second;
}

void KeptRegistrations::DropGone() {
  const uint64_t gone = SharedMemory::gone();
  if (gone == gone_seen_) return;
  gone_seen_ = gone;
  std::erase_if(given_, [](const auto& one) { return one.second.memory.expired(); });
}

}  // namespace weft::collectives
