// A Store inside one process, for tests whose ranks are threads.
#ifndef WEFT_TESTS_COLLECTIVES_MEMORY_STORE_H_
#define WEFT_TESTS_COLLECTIVES_MEMORY_STORE_H_

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/store/store.h"

namespace weft::collectives {

class MemoryStore : public Store {
 public:
  absl::Status Set(absl::string_view key, absl::string_view value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    values_[std::string(key)] = std::string(value);
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    auto all = MultiGet({std::string(key)}, timeout);
    if (!all.ok()) return all.status();
    return (*all)[0];
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string& value = values_[std::string(key)];
    const int64_t sum = std::strtoll(value.c_str(), nullptr, 10) + amount;
    value = absl::StrCat(sum);
    changed_.notify_all();
    return sum;
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = values_.find(std::string(key));
    if (found == values_.end()) {
      if (!expected.empty()) return std::string(expected);
      values_[std::string(key)] = std::string(desired);
    } else if (found->second == std::string(expected)) {
      found->second = std::string(desired);
    }
    changed_.notify_all();
    return values_[std::string(key)];
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return values_.erase(std::string(key)) > 0;
  }
  absl::StatusOr<int64_t> KeyCount() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(values_.size());
  }
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return HasAll(keys);
  }
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return MultiGet(keys, timeout).status();
  }
  absl::Status Append(absl::string_view key, absl::string_view value) override {
    std::lock_guard<std::mutex> lock(mutex_);
    absl::StrAppend(&values_[std::string(key)], value);
    changed_.notify_all();
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout),
                           [&] { return HasAll(keys); })) {
      return absl::DeadlineExceededError(absl::StrCat("no key ", keys[0]));
    }
    std::vector<std::string> all;
    for (const std::string& key : keys) all.push_back(values_[key]);
    return all;
  }
  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override {
    for (size_t i = 0; i < keys.size(); ++i) (void)Set(keys[i], values[i]);
    return absl::OkStatus();
  }
  absl::Status Barrier(absl::string_view key, int rank, int size, absl::Duration timeout) override {
    return AllGather(key, rank, size, "", timeout).status();
  }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank, int size,
                                                     absl::string_view value,
                                                     absl::Duration timeout) override {
    if (key.size() > kKeyBytesMax) return absl::InvalidArgumentError("a key that is too long");
    std::vector<std::string> keys;
    for (int r = 0; r < size; ++r) keys.push_back(absl::StrCat(key, "/", r));
    (void)Set(keys[static_cast<size_t>(rank)], value);
    return MultiGet(keys, timeout);
  }

 private:
  static constexpr size_t kKeyBytesMax = 4096;  // store.h

  bool HasAll(const std::vector<std::string>& keys) const {
    for (const std::string& key : keys) {
      if (values_.count(key) == 0) return false;
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_MEMORY_STORE_H_
