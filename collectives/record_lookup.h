// Fetches the records of ranks that an endpoint did not want at start-up, when it first sends to
// them. The store is asked on a thread of its own, which starts with the first question, so that
// the engine never waits for it. All ranks that were asked for while a request was under way are
// fetched with the next one.
#ifndef WEFT_COLLECTIVES_RECORD_LOOKUP_H_
#define WEFT_COLLECTIVES_RECORD_LOOKUP_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/rendezvous/fast_init.h"
#include "collectives/store/store.h"

namespace weft::collectives {

class RecordLookup {
 public:
  // Called once for each rank that was asked for, by the lookup's thread.
  using Found = std::function<void(int rank, absl::StatusOr<MemberRecord> record)>;

  // `store` outlives this object. A request takes `options.timeout` at most.
  RecordLookup(Store* store, FastInitOptions options, Found found);
  ~RecordLookup();  // waits for the request under way
  RecordLookup(const RecordLookup&) = delete;
  RecordLookup& operator=(const RecordLookup&) = delete;

  void Ask(int rank);  // thread-safe

 private:
  void Serve();

  Store* const store_;
  const FastInitOptions options_;
  const Found found_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> asked_;  // guarded by mutex_
  bool stop_ = false;       // guarded by mutex_
  std::thread thread_;      // guarded by mutex_ until stop_
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RECORD_LOOKUP_H_
