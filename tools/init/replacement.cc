#include "tools/init/replacement.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::init {

using collectives::StoreOp;
using collectives::StoreRequest;

namespace {

StoreRequest Make(const ProcessContext& context, StoreOp op, std::string key) {
  StoreRequest request;
  request.op = op;
  request.keys = {std::move(key)};
  request.timeout = context.options->timeout;
  return request;
}

}  // namespace

std::vector<int> ReplacedRanks(const Options& options) {
  std::vector<int> replaced;
  for (int rank = options.ranks - options.replace; rank < options.ranks; ++rank) {
    replaced.push_back(rank);
  }
  return replaced;
}

std::vector<StoreRequest> WatchesOf(const Options& options, int rank) {
  std::vector<StoreRequest> watches;
  int first = options.ranks - options.replace;
  if (rank >= first) return watches;
  for (const auto& group : options.mesh.GroupsOf(topology::JobRank(rank))) {
    if (group.members.back().value() < first) continue;
    StoreRequest watch;
    watch.op = StoreOp::kWatch;
    watch.keys = {collectives::GroupKey("init", group)};
    watch.timeout = options.timeout;
    watches.push_back(std::move(watch));
  }
  return watches;
}

NewRank::NewRank(const ProcessContext& context, int rank, const collectives::StoreLinkOptions& link,
                 std::function<void()> finished)
    : context_(context),
      rank_(rank),
      replaced_(ReplacedRanks(*context.options)),
      core_(context.secret, HelloOf(context, rank, /*generation=*/1)),
      link_(*context.poller, core_, link, [this] { Changed(); }),
      finished_(std::move(finished)) {}

void NewRank::Changed() {
  if (!asked_ && core_.state() == collectives::StoreClientCore::State::kReady) {
    asked_ = true;
    StoreRequest exchange = Make(context_, StoreOp::kAllGather, "init/rejoin/1");
    exchange.rank = rank_ - replaced_.front();
    exchange.size = static_cast<int32_t>(replaced_.size());
    exchange.values = {collectives::EncodeMember(RecordOf(*context_.options, rank_, 1))};
    exchange_ = core_.Call(std::move(exchange));
    StoreRequest others;
    others.op = StoreOp::kMultiGet;
    others.timeout = context_.options->timeout;
    for (int rank : WantedBy(*context_.options, rank_).ranks()) {
      if (rank < replaced_.front()) others.keys.push_back(collectives::RecordKey("init", rank));
    }
    left_ = 1;
    if (!others.keys.empty()) {
      core_.Call(std::move(others));
      ++left_;
    }
  }
  if (core_.state() == collectives::StoreClientCore::State::kGone && status_.ok()) {
    status_ = core_.gone();
    return finished_();
  }
  for (auto& answer : core_.TakeAnswers()) {
    if (!answer.result.status.ok() && status_.ok()) {
      status_ = answer.result.status;
      return finished_();
    }
    if (answer.id == exchange_ && rank_ == replaced_.front()) Tell();
    if (--left_ == 0) finished_();
  }
}

// One write of all new records, where the old ones were and in each group.
void NewRank::Tell() {
  std::map<int, collectives::MemberRecord> fresh;
  for (int rank : replaced_) fresh[rank] = RecordOf(*context_.options, rank, 1);
  auto news = collectives::NewsOf("init", context_.options->mesh, fresh);
  StoreRequest set;
  set.op = StoreOp::kMultiSet;
  set.keys.assign(news.keys.begin(), news.keys.end());
  set.values.assign(news.values.begin(), news.values.end());
  core_.Call(std::move(set));
  ++left_;
}

}  // namespace weft::init
