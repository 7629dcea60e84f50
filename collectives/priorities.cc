#include "collectives/priorities.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace weft::collectives {
namespace {

// A work that has not moved for so long waits for its peer.
constexpr int64_t kMovingNs = 1'000'000;

bool MoreUrgent(const std::shared_ptr<Operation>& a, const std::shared_ptr<Operation>& b) {
  return a->priority > b->priority;
}

}  // namespace

const char* ToString(Priority priority) {
  switch (priority) {
    case Priority::kLow:
      return "low";
    case Priority::kNormal:
      return "normal";
    case Priority::kHigh:
      return "high";
  }
  return "?";
}

void Priorities::Order(std::vector<std::shared_ptr<Operation>>& active) {
  if (std::is_sorted(active.begin(), active.end(), MoreUrgent)) return;
  std::stable_sort(active.begin(), active.end(), MoreUrgent);
}

void Priorities::BeginTurn(const std::vector<std::shared_ptr<Operation>>& active, int64_t now_ns) {
  urgent_ = Priority::kLow;
  for (const auto& operation : active) {
    if (!operation->verdict.ok() || now_ns - operation->moved_ns >= kMovingNs) continue;
    urgent_ = operation->priority;  // the first is the most urgent
    return;
  }
}

uint32_t Priorities::WindowOf(const Operation& operation) const {
  if (operation.priority < urgent_) return std::min(kYieldingWindow, window_);
  return operation.priority == Priority::kLow ? std::min(kLowWindow, window_) : window_;
}

void Priorities::Count(const Operation& operation, int64_t end_ns) {
  Row& row = rows_[static_cast<size_t>(operation.priority)];
  ++row.works;
  row.bytes += static_cast<int64_t>(operation.ToRecord().bytes);
  row.busy_ns += end_ns - operation.start_ns();
}

std::string Priorities::Describe() const {
  std::string text;
  for (int p = kPriorityCount - 1; p >= 0; --p) {
    const Row& row = rows_[static_cast<size_t>(p)];
    if (row.works == 0) continue;
    absl::StrAppendFormat(&text, "priority %s: %d works, %s, %.3g ms each\n",
                          ToString(static_cast<Priority>(p)), row.works, ToString(Bytes(row.bytes)),
                          static_cast<double>(row.busy_ns) / 1e6 / static_cast<double>(row.works));
  }
  return text;
}

}  // namespace weft::collectives
