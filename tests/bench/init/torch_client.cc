#include "tests/bench/init/torch_client.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::init {
namespace {

enum class Query : uint8_t {
  kValidate = 0,
  kSet = 1,
  kGet = 3,
  kAdd = 4,
  kWait = 6,
  kMultiGet = 10,
  kPing = 13,
};
constexpr uint32_t kMagic = 0x3c85f7ce;
constexpr int kKeysAtOnce = 128;

template <typename T>
void Put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(std::string& out, absl::string_view text) {
  Put(out, static_cast<uint64_t>(text.size()));
  out.append(text.data(), text.size());
}

std::string Request(Query query) { return std::string(1, static_cast<char>(query)); }

std::string WithKey(Query query, const std::string& key) {
  std::string out = Request(query);
  PutText(out, absl::StrCat("/", key));
  return out;
}

std::string WithKeys(Query query, const std::vector<std::string>& keys) {
  std::string out = Request(query);
  Put(out, static_cast<uint64_t>(keys.size()));
  for (const std::string& key : keys) PutText(out, absl::StrCat("/", key));
  return out;
}

template <typename T>
bool ReadAt(absl::string_view bytes, size_t at, T* value) {
  if (bytes.size() < at + sizeof(T)) return false;
  std::memcpy(value, bytes.data() + at, sizeof(T));
  return true;
}

}  // namespace

void TorchClient::Greet() {
  std::string out = Request(Query::kValidate);
  Put(out, kMagic);
  ++sent_;
  out += Request(Query::kPing);
  Put(out, static_cast<uint32_t>(getpid()));
  Ask(out, {Answer::kPing, 0, -1, [this](const absl::Status&, int64_t) { Connected(); }});
}

void TorchClient::Ask(const std::string& request, Pending pending) {
  ++sent_;
  pending_.push_back(std::move(pending));
  Write(request);
}

void TorchClient::Post(const std::string& key, const std::string& value) {
  ++sent_;
  std::string out = WithKey(Query::kSet, key);
  PutText(out, value);
  Write(out);
}

void TorchClient::Set(const std::string& key, const std::string& value, Done done) {
  ++sent_;
  std::string out = WithKey(Query::kSet, key);
  PutText(out, value);
  out += Request(Query::kPing);
  Put(out, static_cast<uint32_t>(getpid()));
  Ask(out, {Answer::kPing, 0, -1, std::move(done)});
}

void TorchClient::GetPresent(const std::string& key, Done done) {
  Ask(WithKey(Query::kGet, key), {Answer::kValues, 1, -1, std::move(done)});
}

void TorchClient::Get(const std::string& key, Done done) {
  Wait(key, [this, key, done = std::move(done)](const absl::Status& status, int64_t) mutable {
    if (!status.ok()) return done(status, 0);
    GetPresent(key, std::move(done));
  });
}

void TorchClient::Add(const std::string& key, int64_t amount, Done done) {
  std::string out = WithKey(Query::kAdd, key);
  Put(out, amount);
  Ask(out, {Answer::kNumber, 0, -1, std::move(done)});
}

void TorchClient::Wait(const std::string& key, Done done) {
  Ask(WithKeys(Query::kWait, {key}), {Answer::kByte, 0, -1, std::move(done)});
}

void TorchClient::Barrier(const std::string& key, int /*rank*/, int size, Done done) {
  std::string last = absl::StrCat(key, ":last");
  Add(key, 1, [=, this](const absl::Status& added, int64_t count) {
    if (!added.ok()) return done(added, 0);
    if (count == size) Post(last, "1");
    Add(key, 0, [=, this](const absl::Status& asked, int64_t) {
      if (!asked.ok()) return done(asked, 0);
      Wait(last, done);
    });
  });
}

void TorchClient::AllGather(const std::string& key, int rank, int size, Done done) {
  Post(absl::StrCat(key, "/", rank), std::string(setup().expected->value(rank)));
  GatherFrom(key, 0, size, done);
}

void TorchClient::GatherFrom(const std::string& key, int first, int size, const Done& done) {
  std::vector<std::string> keys;
  int end = std::min(size, first + kKeysAtOnce);
  for (int rank = first; rank < end; ++rank) keys.push_back(absl::StrCat(key, "/", rank));
  std::string get = WithKeys(Query::kMultiGet, keys);
  auto got = [=, this](const absl::Status& status, int64_t) {
    if (!status.ok() || end == size) return done(status, 0);
    GatherFrom(key, end, size, done);
  };
  auto waited = [=, this](const absl::Status& status, int64_t) {
    if (!status.ok()) return done(status, 0);
    Ask(get, {Answer::kValues, static_cast<size_t>(end - first), first, got});
  };
  Ask(WithKeys(Query::kWait, keys), {Answer::kByte, 0, -1, waited});
}

absl::StatusOr<size_t> TorchClient::Take(const Pending& pending, absl::string_view bytes,
                                         int64_t* number) {
  uint32_t ping = 0;
  uint8_t byte = 0;
  switch (pending.answer) {
    case Answer::kPing:
      if (!ReadAt(bytes, 0, &ping)) return 0;
      if (ping == static_cast<uint32_t>(getpid())) return sizeof(ping);
      return absl::InvalidArgumentError("the server answers a ping with another number");
    case Answer::kNumber:
      return ReadAt(bytes, 0, number) ? sizeof(*number) : 0;
    case Answer::kByte:
      if (!ReadAt(bytes, 0, &byte)) return 0;
      if (byte == 0) return sizeof(byte);
      return absl::InvalidArgumentError(absl::StrCat("the server ends a wait with ", byte));
    case Answer::kValues:
      break;
  }
  size_t at = 0;
  for (size_t i = 0; i < pending.values; ++i) {
    uint64_t size = 0;
    if (!ReadAt(bytes, at, &size) || bytes.size() - at - sizeof(size) < size) return 0;
    absl::string_view value = bytes.substr(at + sizeof(size), size);
    int rank = pending.first + static_cast<int>(i);
    if (pending.first >= 0 && value != setup().expected->value(rank)) {
      return absl::DataLossError("the exchange brought other bytes than were sent");
    }
    at += sizeof(size) + size;
  }
  return at;
}

absl::Status TorchClient::Consume(absl::string_view bytes) {
  in_.append(bytes.data(), bytes.size());
  size_t used = 0;
  while (!pending_.empty() && used < in_.size()) {
    int64_t number = 0;
    WEFT_ASSIGN_OR_RETURN(size_t taken,
                          Take(pending_.front(), absl::string_view(in_).substr(used), &number));
    if (taken == 0) break;
    used += taken;
    ++received_;
    Done done = std::move(pending_.front().done);
    pending_.pop_front();
    done(absl::OkStatus(), number);
  }
  in_.erase(0, used);
  if (pending_.empty() && !in_.empty()) {
    return absl::InvalidArgumentError("the server answers what nobody asked; is it a TCPStore?");
  }
  return absl::OkStatus();
}

void TorchClient::Abandon(const absl::Status& why) {
  for (Pending& pending : std::exchange(pending_, {})) pending.done(why, 0);
}

}  // namespace weft::init
