#include "collectives/record_lookup.h"

#include <map>
#include <utility>

namespace weft::collectives {

RecordLookup::RecordLookup(Store* store, FastInitOptions options, Found found)
    : store_(store), options_(std::move(options)), found_(std::move(found)) {}

RecordLookup::~RecordLookup() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void RecordLookup::Ask(int rank) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) return;
  asked_.push_back(rank);
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::thread([this] { Serve(); });
}

void RecordLookup::Serve() {
  while (true) {
    std::vector<int> ranks;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !asked_.empty(); });
      if (stop_) return;
      ranks.swap(asked_);
    }
    auto records = FindMembers(*store_, options_, RankSet(ranks));
    for (int rank : ranks) {
      if (records.ok()) {
        found_(rank, records->at(rank));
      } else {
        found_(rank, records.status());
      }
    }
  }
}

}  // namespace weft::collectives
