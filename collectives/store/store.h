// The rendezvous store: a key-value service of a job, with c10d's Store semantics plus three
// operations that replace thousands (barrier, allgather, exchange). Implementations: StoreClient
// (our server, store_client.h), and C10dStoreAdapter (any c10d::Store, collectives/c10d).
// Thread-safe. Every call is bounded by `timeout`; a call that ends so returns kDeadlineExceeded
// with the key and who was missing, where that is known. Keys up to 4 KiB, values up to 64 MiB:
// longer ones are refused with kInvalidArgument.
#ifndef WEFT_COLLECTIVES_STORE_STORE_H_
#define WEFT_COLLECTIVES_STORE_STORE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/store/rank_set.h"

namespace weft::collectives {

// What a watch found: version 0 and no value where the key is not there.
struct StoreWatched {
  int64_t version = 0;
  std::optional<std::string> value;
};

// Where Store::Exchange leaves a rank's value.
std::string ExchangedKey(absl::string_view key, int rank);  // "KEY/17"

class Store {
 public:
  virtual ~Store() = default;
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;
  // Waits until the key exists.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) = 0;
  // Adds to a decimal number, 0 when absent; returns the sum.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) = 0;
  // c10d's rule: stores `desired` if the value is `expected`, or if the key is absent and
  // `expected` is empty; returns what the key holds afterwards (`expected` when the key is absent
  // and nothing was stored).
  virtual absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                                 absl::string_view desired) = 0;
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;  // was it there?
  virtual absl::StatusOr<int64_t> KeyCount() = 0;
  // Whether all exist, without waiting.
  virtual absl::StatusOr<bool> Check(const std::vector<std::string>& keys) = 0;
  virtual absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) = 0;
  virtual absl::Status Append(absl::string_view key, absl::string_view value) = 0;
  virtual absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                            absl::Duration timeout) = 0;
  virtual absl::Status MultiSet(const std::vector<std::string>& keys,
                                const std::vector<std::string>& values) = 0;
  // Returns when `size` ranks have called it with this key; a key serves once.
  virtual absl::Status Barrier(absl::string_view key, int rank, int size,
                               absl::Duration timeout) = 0;
  // Every rank gives a value and gets all `size` of them, in rank order; a key serves once.
  virtual absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank,
                                                             int size, absl::string_view value,
                                                             absl::Duration timeout) = 0;

  // Every rank gives a value, and gets those of the ranks that it wants, ascending, once they have
  // come; our own store waits for all `size`, and answers them at once. Whoever needs another one
  // later finds it under ExchangedKey(). A key serves once.
  virtual absl::StatusOr<std::vector<std::string>> Exchange(absl::string_view key, int rank,
                                                            int size, absl::string_view value,
                                                            const RankSet& wanted,
                                                            absl::Duration timeout);

  // As AllGather, but only `root` waits and gets the values; the others get none at once.
  virtual absl::StatusOr<std::vector<std::string>> Gather(absl::string_view key, int rank, int size,
                                                          int root, absl::string_view value,
                                                          absl::Duration timeout);

  // ---- What not every store has: kUnimplemented

  // Waits until the key's version is another than `known` (0: it was not there), which each change
  // and each removal makes it; returns what it is then. Changes in between may be missed.
  virtual absl::StatusOr<StoreWatched> Watch(absl::string_view /*key*/, int64_t /*known*/,
                                             absl::Duration /*timeout*/) {
    return absl::UnimplementedError("this store has no watches");
  }
};

// What a wait for `keys`, one of each of `ranks`, has failed with: where the time ran out, the
// status names the ranks whose key is not there ("...: the time ran out; missing of 8 ranks: 3,
// 5").
absl::Status NameMissing(Store& store, const absl::Status& status, absl::string_view what,
                         const std::vector<int>& ranks, const std::vector<std::string>& keys);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_STORE_H_
