#include "net/verbs/sent_entries.h"

#include <algorithm>

#include "net/verbs/entry.h"

namespace weft::net {

std::optional<uint64_t> SentEntries::FirstWaiting() {
  while (!waiting_.empty()) {
    const uint64_t number = waiting_.front();
    if (number >= taken_ && !(*this)[number].arrived) return number;
    waiting_.pop_front();
  }
  return std::nullopt;
}

uint64_t SentEntries::WaitingBytes() const {
  uint64_t bytes = 0;
  for (uint64_t number : waiting_) bytes += (*this)[number].length + sizeof(EntryHeader);
  return bytes;
}

void SentEntries::WaitAgain(const std::deque<uint64_t>& numbers) {
  waiting_.insert(waiting_.begin(), numbers.begin(), numbers.end());
  std::sort(waiting_.begin(), waiting_.end());
}

}  // namespace weft::net
