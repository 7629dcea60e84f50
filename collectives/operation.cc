#include "collectives/operation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "collectives/endpoint_impl.h"

namespace weft::collectives {

uint64_t Descriptor::Hash() const {
  uint64_t hash = 0x57454654;  // "WEFT"
  auto mix = [&hash](uint64_t value) {
    uint64_t state = hash ^ value;
    hash = SplitMix64(state);
  };
  mix(static_cast<uint64_t>(kind) << 16 | static_cast<uint64_t>(type) << 8 |
      static_cast<uint64_t>(op));
  mix(static_cast<uint64_t>(root));
  mix(count);
  mix(counts_hash);
  for (char letter : algorithm) mix(static_cast<unsigned char>(letter));
  return hash;
}

std::string Descriptor::ToText() const {
  if (kind == CollectiveKind::kBarrier) return absl::StrCat("barrier(", algorithm, ")");
  std::string text = absl::StrCat(ToString(kind), "(", ToString(type));
  if (Reduces(kind)) absl::StrAppend(&text, ", ", ToString(op));
  if (kind == CollectiveKind::kAllGatherV) {
    absl::StrAppend(&text, ", counts of sum ", count, " and hash ",
                    absl::Hex(counts_hash >> 48, absl::kZeroPad4));
  } else if (kind != CollectiveKind::kAllToAllV) {
    absl::StrAppend(&text, ", count ", count);
  } else if (count > 0) {
    absl::StrAppend(&text, ", typical count ", count);
  }
  if (HasRoot(kind)) absl::StrAppend(&text, ", root ", root);
  absl::StrAppend(&text, ", ", algorithm, ")");
  return text;
}

bool Group::HasFinished(Rank rank, uint32_t sequence) const {
  for (size_t r = 0; r < left.size(); ++r) {
    if (ranks[r] != rank || !left[r].has_value()) continue;
    const uint32_t ahead = *left[r] - sequence;  // wraps with the numbers
    return ahead > 0 && ahead <= UINT32_MAX / 2;
  }
  return false;
}

Operation::Operation(EndpointImpl* endpoint, std::shared_ptr<Group> group, int64_t start_ns)
    : moved_ns(start_ns), endpoint_(endpoint), group_(std::move(group)), start_ns_(start_ns) {}

absl::Status Operation::status() const {
  return done() ? status_ : absl::UnavailableError("not done yet");
}

absl::Status Operation::Wait(absl::Duration timeout) {
  if (done()) return status_;
  WEFT_RETURN_IF_ERROR(endpoint_->WaitFor(*this, timeout));
  return status_;
}

void Operation::Finish(absl::Status status, int64_t now_ns) {
  status_ = std::move(status);
  end_ns_ = now_ns;
  done_.store(true, std::memory_order_release);
}

}  // namespace weft::collectives
