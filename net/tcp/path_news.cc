#include "net/tcp/path_news.h"

namespace weft::net {
namespace {

// Between two looks for what other threads have reported.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

}  // namespace

PathNews::PathNews(Poller& poller, const PlannedWays& ways) : PollHandler(poller), ways_(ways) {}

void PathNews::Add(PathFollower& one) {
  if (followers_.empty()) SetDeadline(poller().now() + kLookEvery);
  followers_.insert(&one);
  if (ways_->reports_version() > 0) one.OnPathNews();
}

void PathNews::Tell() {
  const uint64_t version = ways_->reports_version();
  if (version == version_) return;
  version_ = version;
  for (PathFollower* one : followers_) one->OnPathNews();
}

void PathNews::OnDeadline(absl::Time now) {
  Tell();
  if (!followers_.empty()) SetDeadline(now + kLookEvery);
}

}  // namespace weft::net
