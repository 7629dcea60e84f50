#include "tools/driver/etcd.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::driver {
namespace {

using Json = nlohmann::json;

constexpr char kScheme[] = "etcd://";
constexpr absl::Duration kCallMost = absl::Seconds(5);  // to one member
constexpr absl::Duration kPauseFirst = absl::Milliseconds(50), kPauseMost = absl::Seconds(1);
constexpr size_t kMacDigits = 2 * crypto_auth_BYTES;
static_assert(crypto_auth_KEYBYTES == sizeof(net::JobSecret));

std::string Encode(absl::string_view text) { return absl::Base64Escape(text); }

// Numbers of 64 bits are texts in etcd's JSON. 0: it is not there, or no number.
int64_t NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  int64_t number = 0;
  if (found == object.end() || !found->is_string() ||
      !absl::SimpleAtoi(found->get_ref<const std::string&>(), &number)) {
    return 0;
  }
  return number;
}

// The first key of etcd's answer {"kvs": [{"value": ..., "mod_revision": ...}]}, which may have
// none.
absl::StatusOr<Etcd::Held> FirstOf(const Json& range) {
  absl::Status problem = absl::DataLossError("etcd answers with no range of keys");
  if (!range.is_object()) return problem;
  const auto kvs = range.find("kvs");
  if (kvs == range.end() || kvs->empty()) return Etcd::Held{};
  if (!kvs->is_array() || !kvs->front().is_object()) return problem;
  const Json& first = kvs->front();
  const int64_t revision = NumberIn(first, "mod_revision");
  std::string value;
  const auto text = first.find("value");
  const bool is_text = text != first.end() && text->is_string();
  if (!is_text || revision <= 0 ||
      !absl::Base64Unescape(text->get_ref<const std::string&>(), &value)) {
    return problem;
  }
  return Etcd::Held{std::move(value), revision};
}

Json CompareOf(const std::string& key, int64_t revision) {
  return {{"key", Encode(key)},
          {"target", "MOD"},
          {"result", "EQUAL"},
          {"mod_revision", absl::StrCat(revision)}};
}
Json PutOf(const std::string& key, const std::string& value) {
  return {{"request_put", {{"key", Encode(key)}, {"value", Encode(value)}}}};
}
Json RangeOf(const std::string& key) { return {{"request_range", {{"key", Encode(key)}}}}; }

absl::StatusOr<Json> ParseAnswer(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_object()) return json;
  return absl::DataLossError(
      absl::StrCat("etcd answers with no JSON object: '", text.substr(0, 80), "'"));
}

// Whether an error of HttpFetch() is that of a request which is wrong, and will be. 408 and 429 are
// of a member that has no time or no room for it now.
bool IsRefused(absl::string_view error) {
  constexpr absl::string_view kAnswers = " answers with status ";
  const size_t at = error.find(kAnswers);
  if (at == error.npos) return false;
  const absl::string_view status = error.substr(at + kAnswers.size(), 3);
  return absl::StartsWith(status, "4") && status != "408" && status != "429";
}

bool Succeeded(const Json& answer) {
  const auto succeeded = answer.find("succeeded");
  return succeeded != answer.end() && succeeded->is_boolean() && succeeded->get<bool>();
}

}  // namespace

bool IsEtcd(absl::string_view text) { return absl::StartsWith(text, kScheme); }

absl::StatusOr<EtcdPlace> ParseEtcdPlace(absl::string_view text) {
  const auto refuse = [all = std::string(text)](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", all, "' ", why, "; right is etcd://10.0.0.1:2379,10.0.0.2:2379/weft"));
  };
  if (!absl::ConsumePrefix(&text, kScheme)) return refuse("is no place in etcd");
  const size_t slash = text.find('/');
  if (slash == text.npos || slash + 1 == text.size()) return refuse("has no prefix of its keys");
  EtcdPlace place;
  absl::string_view prefix = text.substr(slash + 1);
  absl::ConsumeSuffix(&prefix, "/");
  place.prefix = std::string(prefix);
  for (const absl::string_view member : absl::StrSplit(text.substr(0, slash), ',')) {
    absl::StatusOr<observe::HttpAddress> address = observe::ParseHttpAddress(member);
    if (!address.ok() || absl::StartsWith(member, ":") || !absl::StrContains(member, ":")) {
      return refuse(absl::StrCat("has '", member, "' for a member's HOST:PORT"));
    }
    place.members.push_back(*std::move(address));
  }
  return place;
}

Etcd::Etcd(EtcdPlace place, std::string job, const net::JobSecret& secret, absl::Duration patience)
    : place_(std::move(place)), job_(std::move(job)), secret_(secret), patience_(patience) {}

std::string Etcd::KeyOf(const std::string& name) const {
  return absl::StrCat(place_.prefix, "/", job_, "/", name);
}

std::string Etcd::Seal(const std::string& name, absl::string_view value) const {
  // The key is part of it, so that no value can be put in another's place.
  const std::string text = absl::StrCat(KeyOf(name), "\n", value);
  std::array<unsigned char, crypto_auth_BYTES> mac;
  crypto_auth(mac.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
              reinterpret_cast<const unsigned char*>(secret_.data()));
  return absl::StrCat(absl::BytesToHexString(
                          absl::string_view(reinterpret_cast<const char*>(mac.data()), mac.size())),
                      "\n", value);
}

absl::StatusOr<std::string> Etcd::Open(const std::string& name, absl::string_view sealed) const {
  if (sealed.size() > kMacDigits && sealed[kMacDigits] == '\n') {
    const absl::string_view value = sealed.substr(kMacDigits + 1);
    if (observe::SameSecret(Seal(name, value), sealed)) return std::string(value);
  }
  return absl::PermissionDeniedError(
      absl::StrCat("etcd's key ", KeyOf(name),
                   " was not written with this job's secret (WEFT_JOB_SECRET), but by "
                   "another job of this name, or an unauthenticated client"));
}

absl::StatusOr<std::string> Etcd::Call(const std::string& path, const std::string& body) const {
  const SystemClock clock;
  const absl::Time end = clock.Now() + patience_;
  absl::Duration pause = kPauseFirst;
  std::string last;
  while (true) {
    for (size_t tried = 0; tried < place_.members.size(); ++tried) {
      absl::StatusOr<std::string> said =
          observe::HttpFetch(place_.members[member_],
                             {.method = "POST", .path = path, .body = body, .patience = kCallMost});
      if (said.ok()) return said;
      if (IsRefused(said.status().message())) return absl::InternalError(said.status().message());
      last = std::string(said.status().message());
      member_ = (member_ + 1) % place_.members.size();
    }
    if (clock.Now() + pause >= end) {
      return absl::UnavailableError(absl::StrCat("no member of etcd has answered for ",
                                                 absl::FormatDuration(patience_), ": ", last));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kPauseMost);
  }
}

absl::StatusOr<Etcd::Held> Etcd::Read(const std::string& name) const {
  const Json body = {{"key", Encode(KeyOf(name))}};
  WEFT_ASSIGN_OR_RETURN(const std::string said, Call("/v3/kv/range", body.dump()));
  WEFT_ASSIGN_OR_RETURN(const Json answer, ParseAnswer(said));
  WEFT_ASSIGN_OR_RETURN(Held held, FirstOf(answer));
  if (held.revision == 0) return held;
  WEFT_ASSIGN_OR_RETURN(held.value, Open(name, held.value));
  return held;
}

absl::StatusOr<Etcd::Held> Etcd::CompareAndPut(const std::string& name, int64_t revision,
                                               absl::string_view value) const {
  const std::string key = KeyOf(name);
  const Json body = {{"compare", {CompareOf(key, revision)}},
                     {"success", {PutOf(key, Seal(name, value))}},
                     {"failure", {RangeOf(key)}}};
  WEFT_ASSIGN_OR_RETURN(const std::string said, Call("/v3/kv/txn", body.dump()));
  WEFT_ASSIGN_OR_RETURN(const Json answer, ParseAnswer(said));
  if (Succeeded(answer)) {
    const auto header = answer.find("header");
    const int64_t now =
        header != answer.end() && header->is_object() ? NumberIn(*header, "revision") : 0;
    if (now <= 0) return absl::DataLossError("etcd answers a transaction without a revision");
    return Held{std::string(value), now};
  }
  const auto responses = answer.find("responses");
  if (responses == answer.end() || !responses->is_array() || responses->size() != 1 ||
      !responses->front().is_object() || !responses->front().contains("response_range")) {
    return absl::DataLossError("etcd answers a transaction with no range of keys");
  }
  WEFT_ASSIGN_OR_RETURN(Held held, FirstOf(responses->front()["response_range"]));
  if (held.revision == 0) return held;
  WEFT_ASSIGN_OR_RETURN(held.value, Open(name, held.value));
  return held;
}

absl::Status Etcd::PutWhile(const std::string& guard, int64_t revision, const std::string& name,
                            absl::string_view value) const {
  const Json body = {{"compare", {CompareOf(KeyOf(guard), revision)}},
                     {"success", {PutOf(KeyOf(name), Seal(name, value))}},
                     {"failure", Json::array()}};
  WEFT_ASSIGN_OR_RETURN(const std::string said, Call("/v3/kv/txn", body.dump()));
  WEFT_ASSIGN_OR_RETURN(const Json answer, ParseAnswer(said));
  if (Succeeded(answer)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("another process has written etcd's key ", KeyOf(guard)));
}

EtcdKeeper::EtcdKeeper(std::shared_ptr<const Etcd> etcd)
    : etcd_(std::move(etcd)), name_(absl::StrCat("etcd's ", etcd_->KeyOf(kEtcdState))) {}

absl::StatusOr<std::string> EtcdKeeper::Read() {
  WEFT_ASSIGN_OR_RETURN(held_, etcd_->Read(kEtcdState));
  return held_.value;
}

absl::StatusOr<std::string> EtcdKeeper::CompareSet(absl::string_view expected,
                                                   absl::string_view desired) {
  if (held_.value != expected) WEFT_RETURN_IF_ERROR(Read().status());
  if (held_.value != expected) return held_.value;
  WEFT_ASSIGN_OR_RETURN(held_, etcd_->CompareAndPut(kEtcdState, held_.revision, desired));
  // As a store has it where there is no such record and none was written.
  return held_.revision == 0 ? std::string(expected) : held_.value;
}

absl::Status EtcdKeeper::PutAddress(const std::string& address) {
  return etcd_->PutWhile(kEtcdState, held_.revision, kEtcdAddress, address);
}

}  // namespace weft::driver
