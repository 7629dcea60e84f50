// The two directions between our Store and c10d's: torchrun's TCPStore serves our rendezvous, and
// our store serves programs that ask for c10d::Store.
#ifndef WEFT_COLLECTIVES_C10D_STORE_H_
#define WEFT_COLLECTIVES_C10D_STORE_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/store/store.h"

namespace weft::collectives {

// Our Store over any c10d::Store. Its exceptions become statuses: kDeadlineExceeded for a wait that
// ran out, kUnavailable for a lost server, kUnimplemented for what it has not.
//
// c10d's stores make one call at a time, and a wait holds up all others; so each waiting call
// borrows a clone of the store (a connection of its own), of which there are as many as there were
// calls waiting at one time. Barrier and AllGather are made of keys below their own, and cost a few
// messages a rank. Thread-safe.
class C10dStoreAdapter final : public Store {
 public:
  // `borrows`: a waiting call may take the store itself until ReturnStore(), while the program
  // waits for what is done with it, so that this costs no connection.
  explicit C10dStoreAdapter(c10::intrusive_ptr<c10d::Store> store, bool borrows = false);
  void ReturnStore();

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<int64_t> KeyCount() override;
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override;
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override;
  absl::Status Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override;
  absl::Status Barrier(absl::string_view key, int rank, int size, absl::Duration timeout) override;
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank, int size,
                                                     absl::string_view value,
                                                     absl::Duration timeout) override;

 private:
  using Handle = c10::intrusive_ptr<c10d::Store>;
  template <typename Body>
  auto Call(absl::string_view what, Body body);
  // The same with a store that no other call waits in.
  template <typename Body>
  auto WaitingCall(absl::string_view what, Body body);

  void GiveBack(Handle handle);

  const Handle store_;
  std::mutex mutex_;
  std::vector<Handle> idle_;  // clones that nobody uses, and the store while it is borrowed
  bool borrows_;
};

// A c10d::Store over ours. Failures are thrown as c10::DistStoreError with the status' text.
// Thread-safe; a wait holds up nobody.
class WeftC10dStore final : public c10d::Store {
 public:
  explicit WeftC10dStore(std::shared_ptr<collectives::Store> store,
                         std::chrono::milliseconds timeout = kDefaultTimeout);

  using c10d::Store::compareSet;
  using c10d::Store::set;
  c10::intrusive_ptr<c10d::Store> clone() override;  // shares our store; its own timeout
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  const std::shared_ptr<collectives::Store> store_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_STORE_H_
