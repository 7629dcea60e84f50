#include "collectives/store/library/store_library.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/redis/redis_store.h"
#include "collectives/store/server/store_server.h"
#include "collectives/store/store.h"
#include "net/secret.h"

struct weft_store {
  std::unique_ptr<weft::collectives::Store> store;
};

struct weft_store_server {
  std::unique_ptr<weft::collectives::StoreServer> server;
};

namespace weft::collectives {
namespace {

std::string Text(const char* text) { return text == nullptr ? "" : text; }

absl::Duration Time(double seconds) {
  return seconds < 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

void Give(absl::string_view text, weft_store_text* out) {
  out->size = text.size();
  out->data = static_cast<char*>(std::malloc(text.size() + 1));
  WEFT_CHECK(out->data != nullptr, "no memory for " << text.size() << " bytes");
  std::memcpy(out->data, text.data(), text.size());
  out->data[text.size()] = '\0';
}

int Finish(const absl::Status& status, weft_store_text* error) {
  if (!status.ok()) Give(status.message(), error);
  return static_cast<int>(status.code());
}

absl::StatusOr<std::vector<std::string>> List(const char* data, size_t size) {
  std::vector<std::string> list;
  while (size > 0) {
    uint32_t length = 0;
    if (size < sizeof(length)) return absl::InvalidArgumentError("a list of texts is cut off");
    std::memcpy(&length, data, sizeof(length));
    data += sizeof(length);
    size -= sizeof(length);
    if (size < length) return absl::InvalidArgumentError("a list of texts is cut off");
    list.emplace_back(data, length);
    data += length;
    size -= length;
  }
  return list;
}

absl::StatusOr<std::unique_ptr<Store>> Open(const weft_store_options& given) {
  if (given.redis != 0) {
    RedisStoreOptions options;
    options.address = Text(given.address);
    options.password = Text(given.secret);
    options.job = Text(given.job);
    options.connect_timeout = Time(given.connect_timeout);
    return ConnectRedisStore(std::move(options));
  }
  StoreClientOptions options;
  options.address = Text(given.address);
  if (std::string secret = Text(given.secret); !secret.empty()) {
    WEFT_ASSIGN_OR_RETURN(options.secret, net::SecretFromHex(secret));
  }
  options.job = Text(given.job);
  options.name = Text(given.name);
  options.host = Text(given.host);
  options.rank = given.rank < 0 ? Rank() : Rank(given.rank);
  options.generation = given.generation;
  options.connect_timeout = Time(given.connect_timeout);
  options.reconnect = Time(given.reconnect);
  options.silence = Time(given.silence);
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, StoreClient::Connect(std::move(options)));
  return store;
}

struct Call {
  StoreOp op;
  std::vector<std::string> keys;
  std::vector<std::string> values;
  int64_t number;
  int rank;
  int size;
  absl::Duration timeout;
};

struct Result {
  int64_t number = 0;
  std::vector<std::string> values;
};

absl::Status CheckShape(const Call& call) {
  size_t keys = 1;
  size_t values = 0;
  switch (call.op) {
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
      return absl::OkStatus();
    case StoreOp::kMultiSet:
      keys = call.keys.size();
      values = keys;
      break;
    case StoreOp::kKeyCount:
      keys = 0;
      break;
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kAllGather:
    case StoreOp::kGather:
      values = 1;
      break;
    case StoreOp::kCompareSet:
      values = 2;
      break;
    default:
      break;
  }
  if (call.keys.size() == keys && call.values.size() == values) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToString(call.op), " with ", call.keys.size(),
                                                 " keys and ", call.values.size(),
                                                 " values; right are ", keys, " and ", values));
}

// Runs the operations that wait.
absl::Status Await(Store& store, Call& call, Result& result) {
  switch (call.op) {
    case StoreOp::kGet: {
      WEFT_ASSIGN_OR_RETURN(std::string value, store.Get(call.keys[0], call.timeout));
      result.values = {std::move(value)};
      return absl::OkStatus();
    }
    case StoreOp::kWait:
      return store.Wait(call.keys, call.timeout);
    case StoreOp::kMultiGet: {
      WEFT_ASSIGN_OR_RETURN(result.values, store.MultiGet(call.keys, call.timeout));
      return absl::OkStatus();
    }
    case StoreOp::kBarrier:
      return store.Barrier(call.keys[0], call.rank, call.size, call.timeout);
    case StoreOp::kAllGather: {
      WEFT_ASSIGN_OR_RETURN(result.values, store.AllGather(call.keys[0], call.rank, call.size,
                                                           call.values[0], call.timeout));
      return absl::OkStatus();
    }
    case StoreOp::kGather: {
      WEFT_ASSIGN_OR_RETURN(
          result.values, store.Gather(call.keys[0], call.rank, call.size,
                                      static_cast<int>(call.number), call.values[0], call.timeout));
      return absl::OkStatus();
    }
    case StoreOp::kWatch: {
      WEFT_ASSIGN_OR_RETURN(StoreWatched watched,
                            store.Watch(call.keys[0], call.number, call.timeout));
      result.number = watched.version;
      if (watched.value.has_value()) result.values = {*std::move(watched.value)};
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError(
          absl::StrCat("operation ", static_cast<int>(call.op), " is none of a store's"));
  }
}

absl::Status Execute(Store& store, Call& call, Result& result) {
  WEFT_RETURN_IF_ERROR(CheckShape(call));
  switch (call.op) {
    case StoreOp::kSet:
      return store.Set(call.keys[0], call.values[0]);
    case StoreOp::kAdd: {
      WEFT_ASSIGN_OR_RETURN(result.number, store.Add(call.keys[0], call.number));
      return absl::OkStatus();
    }
    case StoreOp::kCompareSet: {
      WEFT_ASSIGN_OR_RETURN(std::string value,
                            store.CompareSet(call.keys[0], call.values[0], call.values[1]));
      result.values = {std::move(value)};
      return absl::OkStatus();
    }
    case StoreOp::kDelete: {
      WEFT_ASSIGN_OR_RETURN(bool gone, store.Delete(call.keys[0]));
      result.number = gone ? 1 : 0;
      return absl::OkStatus();
    }
    case StoreOp::kKeyCount: {
      WEFT_ASSIGN_OR_RETURN(result.number, store.KeyCount());
      return absl::OkStatus();
    }
    case StoreOp::kCheck: {
      WEFT_ASSIGN_OR_RETURN(bool all, store.Check(call.keys));
      result.number = all ? 1 : 0;
      return absl::OkStatus();
    }
    case StoreOp::kAppend:
      return store.Append(call.keys[0], call.values[0]);
    case StoreOp::kMultiSet:
      return store.MultiSet(call.keys, call.values);
    default:
      return Await(store, call, result);
  }
}

}  // namespace
}  // namespace weft::collectives

extern "C" {

int weft_store_open(const weft_store_options* options, weft_store** store, weft_store_text* error) {
  auto opened = weft::collectives::Open(*options);
  if (!opened.ok()) return weft::collectives::Finish(opened.status(), error);
  *store = new weft_store{*std::move(opened)};
  return 0;
}

void weft_store_close(weft_store* store) { delete store; }

int weft_store_call(weft_store* store, int32_t op, const char* keys, size_t keys_size,
                    const char* values, size_t values_size, int64_t number, int32_t rank,
                    int32_t size, double timeout, int64_t* number_out, uint32_t* values_out,
                    weft_store_text* out) {
  using namespace weft::collectives;
  auto key_list = List(keys, keys_size);
  auto value_list = List(values, values_size);
  if (!key_list.ok() || !value_list.ok()) {
    return Finish(key_list.ok() ? value_list.status() : key_list.status(), out);
  }
  Call call{static_cast<StoreOp>(op),
            *std::move(key_list),
            *std::move(value_list),
            number,
            rank,
            size,
            Time(timeout)};
  Result result;
  absl::Status status = Execute(*store->store, call, result);
  if (!status.ok()) return Finish(status, out);
  *number_out = result.number;
  *values_out = static_cast<uint32_t>(result.values.size());
  std::string text;
  for (const std::string& value : result.values) AppendValue(text, value);
  Give(text, out);
  return 0;
}

int weft_store_serve(const char* listen, const char* secret, int32_t open_to_unauthenticated,
                     const char* description, weft_store_server** server,
                     weft_store_text* address) {
  using namespace weft::collectives;
  StoreServerOptions options;
  options.listen = Text(listen);
  options.open_to_unauthenticated = open_to_unauthenticated != 0;
  options.core.description = Text(description);
  if (std::string hex = Text(secret); !hex.empty()) {
    auto decoded = weft::net::SecretFromHex(hex);
    if (!decoded.ok()) return Finish(decoded.status(), address);
    options.core.secret = *decoded;
  }
  auto started = StoreServer::Start(std::move(options));
  if (!started.ok()) return Finish(started.status(), address);
  Give((*started)->address(), address);
  *server = new weft_store_server{*std::move(started)};
  return 0;
}

void weft_store_stop(weft_store_server* server, double drain) {
  if (drain > 0) server->server->Drain(weft::collectives::Time(drain));
  delete server;
}

void weft_store_free(char* data) { std::free(data); }

}  // extern "C"
