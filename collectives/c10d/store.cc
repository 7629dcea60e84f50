#include "collectives/c10d/store.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr auto kDay = std::chrono::hours(24);

std::vector<uint8_t> ToVector(absl::string_view text) {
  return std::vector<uint8_t>(text.begin(), text.end());
}
std::string ToText(const std::vector<uint8_t>& bytes) {
  return std::string(bytes.begin(), bytes.end());
}

// c10d reads 0 as "for ever", and adds what it gets to the time of day.
std::chrono::milliseconds ToTimeout(absl::Duration timeout) {
  std::chrono::milliseconds rounded = absl::ToChronoMilliseconds(timeout);
  return std::clamp<std::chrono::milliseconds>(rounded, std::chrono::milliseconds(1), kDay);
}

// c10d says only in words that a time ran out.
bool IsTimeout(absl::string_view message) {
  return absl::StrContains(absl::AsciiStrToLower(message), "timeout") ||
         absl::StrContains(absl::AsciiStrToLower(message), "timed out");
}

absl::Status FailedWith(const std::string& message, absl::StatusCode code) {
  return absl::Status(IsTimeout(message) ? absl::StatusCode::kDeadlineExceeded : code, message);
}

// Status of the exception that is being handled.
absl::Status CurrentStatus(absl::string_view what) {
  auto text = [&](const c10::Error& error) {
    return absl::StrCat(what, ": ", error.what_without_backtrace());
  };
  try {
    throw;
  } catch (const c10::NotImplementedError& error) {
    return absl::UnimplementedError(text(error));
  } catch (const c10::DistError& error) {
    return FailedWith(text(error), absl::StatusCode::kUnavailable);
  } catch (const c10::Error& error) {  // as which a FileStore's and a HashStore's times run out
    return FailedWith(text(error), absl::StatusCode::kInternal);
  } catch (const std::exception& error) {
    return FailedWith(absl::StrCat(what, ": ", error.what()), absl::StatusCode::kInternal);
  }
}

// Runs `body`, whose result is void or a value.
template <typename Body>
auto Caught(absl::string_view what, Body body) {
  using Value = std::invoke_result_t<Body>;
  if constexpr (std::is_void_v<Value>) {
    try {
      body();
      return absl::OkStatus();
    } catch (...) {
      return CurrentStatus(what);
    }
  } else {
    try {
      return absl::StatusOr<Value>(body());
    } catch (...) {
      return absl::StatusOr<Value>(CurrentStatus(what));
    }
  }
}

absl::Status CheckGroup(absl::string_view key, int rank, int size) {
  if (rank >= 0 && rank < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", rank, " is not one of the ", size, " of '", key, "'"));
}

std::vector<std::string> KeysOfRanks(absl::string_view key, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(absl::StrCat(key, "/", rank));
  return keys;
}

}  // namespace

C10dStoreAdapter::C10dStoreAdapter(c10::intrusive_ptr<c10d::Store> store, bool borrows)
    : store_(std::move(store)), borrows_(borrows) {
  if (borrows_) idle_.push_back(store_);
}

void C10dStoreAdapter::ReturnStore() {
  std::lock_guard<std::mutex> lock(mutex_);
  borrows_ = false;
  std::erase(idle_, store_);
}

template <typename Body>
auto C10dStoreAdapter::Call(absl::string_view what, Body body) {
  return Caught(what, [&] { return body(*store_); });
}

template <typename Body>
auto C10dStoreAdapter::WaitingCall(absl::string_view what, Body body) {
  return Caught(what, [&] {
    Handle handle;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) handle = std::move(idle_.back()), idle_.pop_back();
    }
    if (!handle) handle = store_->clone();
    // A clone whose call failed is not used again: its connection may be lost, or hold a late
    // reply.
    if constexpr (std::is_void_v<std::invoke_result_t<Body, c10d::Store&>>) {
      body(*handle);
      GiveBack(std::move(handle));
    } else {
      auto value = body(*handle);
      GiveBack(std::move(handle));
      return value;
    }
  });
}

void C10dStoreAdapter::GiveBack(Handle handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (borrows_ || handle != store_) idle_.push_back(std::move(handle));
}

absl::Status C10dStoreAdapter::Set(absl::string_view key, absl::string_view value) {
  return Call(absl::StrCat("set '", key, "'"),
              [&](c10d::Store& store) { store.set(std::string(key), ToVector(value)); });
}

absl::StatusOr<std::string> C10dStoreAdapter::Get(absl::string_view key, absl::Duration timeout) {
  return WaitingCall(absl::StrCat("get '", key, "'"), [&](c10d::Store& store) {
    c10d::StoreTimeoutGuard bound(store, ToTimeout(timeout));  // by which get() waits for the key
    return ToText(store.get(std::string(key)));
  });
}

absl::StatusOr<int64_t> C10dStoreAdapter::Add(absl::string_view key, int64_t amount) {
  return Call(absl::StrCat("add to '", key, "'"),
              [&](c10d::Store& store) { return store.add(std::string(key), amount); });
}

absl::StatusOr<std::string> C10dStoreAdapter::CompareSet(absl::string_view key,
                                                         absl::string_view expected,
                                                         absl::string_view desired) {
  return Call(absl::StrCat("compare-set '", key, "'"), [&](c10d::Store& store) {
    return ToText(store.compareSet(std::string(key), ToVector(expected), ToVector(desired)));
  });
}

absl::StatusOr<bool> C10dStoreAdapter::Delete(absl::string_view key) {
  return Call(absl::StrCat("delete '", key, "'"),
              [&](c10d::Store& store) { return store.deleteKey(std::string(key)); });
}

absl::StatusOr<int64_t> C10dStoreAdapter::KeyCount() {
  return Call("count keys", [&](c10d::Store& store) { return store.getNumKeys(); });
}

absl::StatusOr<bool> C10dStoreAdapter::Check(const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  return Call("check keys", [&](c10d::Store& store) { return store.check(keys); });
}

absl::Status C10dStoreAdapter::Wait(const std::vector<std::string>& keys, absl::Duration timeout) {
  if (keys.empty()) return absl::OkStatus();
  return WaitingCall(
      absl::StrCat("wait for '", keys[0], "'",
                   keys.size() > 1 ? absl::StrCat(" and ", keys.size() - 1, " more") : ""),
      [&](c10d::Store& store) { store.wait(keys, ToTimeout(timeout)); });
}

absl::Status C10dStoreAdapter::Append(absl::string_view key, absl::string_view value) {
  return Call(absl::StrCat("append to '", key, "'"),
              [&](c10d::Store& store) { store.append(std::string(key), ToVector(value)); });
}

absl::StatusOr<std::vector<std::string>> C10dStoreAdapter::MultiGet(
    const std::vector<std::string>& keys, absl::Duration timeout) {
  if (keys.empty()) return std::vector<std::string>();
  return WaitingCall(absl::StrCat("get ", keys.size(), " keys from '", keys[0], "' on"),
                     [&](c10d::Store& store) {
                       c10d::StoreTimeoutGuard bound(store, ToTimeout(timeout));
                       std::vector<std::string> values;
                       for (const auto& value : store.multiGet(keys)) {
                         values.push_back(ToText(value));
                       }
                       return values;
                     });
}

absl::Status C10dStoreAdapter::MultiSet(const std::vector<std::string>& keys,
                                        const std::vector<std::string>& values) {
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys.size(), " keys but ", values.size(), " values"));
  }
  if (keys.empty()) return absl::OkStatus();
  return Call(absl::StrCat("set ", keys.size(), " keys"), [&](c10d::Store& store) {
    std::vector<std::vector<uint8_t>> bytes;
    for (const std::string& value : values) bytes.push_back(ToVector(value));
    store.multiSet(keys, bytes);
  });
}

absl::Status C10dStoreAdapter::Barrier(absl::string_view key, int rank, int size,
                                       absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckGroup(key, rank, size));
  std::vector<std::string> keys = KeysOfRanks(key, size);
  WEFT_RETURN_IF_ERROR(Set(keys[rank], "here"));
  WEFT_ASSIGN_OR_RETURN(int64_t arrived, Add(absl::StrCat(key, "/arrived"), 1));
  if (arrived == size) WEFT_RETURN_IF_ERROR(Set(absl::StrCat(key, "/all"), "here"));
  absl::Status status = Wait({absl::StrCat(key, "/all")}, timeout);
  if (status.ok()) return status;
  return NameMissing(*this, status, absl::StrCat("barrier '", key, "'"),
                     RankSet::Below(size).ranks(), keys);
}

absl::StatusOr<std::vector<std::string>> C10dStoreAdapter::AllGather(absl::string_view key,
                                                                     int rank, int size,
                                                                     absl::string_view value,
                                                                     absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(CheckGroup(key, rank, size));
  std::vector<std::string> keys = KeysOfRanks(key, size);
  WEFT_RETURN_IF_ERROR(Set(keys[rank], value));
  auto values = MultiGet(keys, timeout);
  if (!values.ok()) {
    return NameMissing(*this, values.status(), absl::StrCat("all-gather '", key, "'"),
                       RankSet::Below(size).ranks(), keys);
  }
  return values;
}

// ---- WeftC10dStore

namespace {

[[noreturn]] void Throw(const absl::Status& status) {
  throw c10::DistStoreError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                            "weft store: " + std::string(status.ToString()));
}

void OrThrow(const absl::Status& status) {
  if (!status.ok()) Throw(status);
}
template <typename Value>
Value OrThrow(absl::StatusOr<Value> value) {
  if (!value.ok()) Throw(value.status());
  return *std::move(value);
}

absl::Duration ToDuration(std::chrono::milliseconds timeout) {
  return timeout <= c10d::Store::kNoTimeout ? absl::InfiniteDuration() : absl::FromChrono(timeout);
}

}  // namespace

WeftC10dStore::WeftC10dStore(std::shared_ptr<collectives::Store> store,
                             std::chrono::milliseconds timeout)
    : c10d::Store(timeout), store_(std::move(store)) {}

c10::intrusive_ptr<c10d::Store> WeftC10dStore::clone() {
  return c10::make_intrusive<WeftC10dStore>(store_, timeout_);
}

void WeftC10dStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  OrThrow(store_->Set(key, ToText(value)));
}

std::vector<uint8_t> WeftC10dStore::compareSet(const std::string& key,
                                               const std::vector<uint8_t>& expected,
                                               const std::vector<uint8_t>& desired) {
  return ToVector(OrThrow(store_->CompareSet(key, ToText(expected), ToText(desired))));
}

std::vector<uint8_t> WeftC10dStore::get(const std::string& key) {
  return ToVector(OrThrow(store_->Get(key, ToDuration(timeout_))));
}

int64_t WeftC10dStore::add(const std::string& key, int64_t amount) {
  return OrThrow(store_->Add(key, amount));
}

bool WeftC10dStore::deleteKey(const std::string& key) { return OrThrow(store_->Delete(key)); }

bool WeftC10dStore::check(const std::vector<std::string>& keys) {
  return OrThrow(store_->Check(keys));
}

int64_t WeftC10dStore::getNumKeys() { return OrThrow(store_->KeyCount()); }

void WeftC10dStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void WeftC10dStore::wait(const std::vector<std::string>& keys,
                         const std::chrono::milliseconds& timeout) {
  OrThrow(store_->Wait(keys, ToDuration(timeout)));
}

void WeftC10dStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  OrThrow(store_->Append(key, ToText(value)));
}

std::vector<std::vector<uint8_t>> WeftC10dStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  for (const std::string& value : OrThrow(store_->MultiGet(keys, ToDuration(timeout_)))) {
    values.push_back(ToVector(value));
  }
  return values;
}

void WeftC10dStore::multiSet(const std::vector<std::string>& keys,
                             const std::vector<std::vector<uint8_t>>& values) {
  std::vector<std::string> texts;
  for (const std::vector<uint8_t>& value : values) texts.push_back(ToText(value));
  OrThrow(store_->MultiSet(keys, texts));
}

}  // namespace weft::collectives
