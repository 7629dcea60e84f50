// The store's server without sockets: its clients' bytes, and what it writes to them.
#ifndef WEFT_TESTS_COLLECTIVES_STORE_STORE_CORE_FIXTURE_H_
#define WEFT_TESTS_COLLECTIVES_STORE_STORE_CORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_core.h"
#include "net/handshake.h"

namespace weft::collectives {

using Replies = std::map<uint64_t, StoreResult>;

inline StoreRequest Make(StoreOp op, uint64_t id, std::vector<std::string> keys,
                         std::vector<std::string> values = {}) {
  StoreRequest request;
  request.op = op;
  request.id = id;
  request.keys.assign(keys.begin(), keys.end());
  request.values.assign(values.begin(), values.end());
  request.timeout = absl::Seconds(10);
  return request;
}

class StoreCoreTest : public testing::Test {
 protected:
  // What the core has written to a connection since the last call.
  std::string Written(StoreConnections::Id id) {
    for (auto& output : core_->connections().TakeOutput()) {
      std::string& written = written_[output.connection];
      written += std::string(output.frame.head.view());
      if (output.frame.body) written += *output.frame.body;
    }
    std::string bytes = std::exchange(written_[id], {});
    core_->connections().Sent(id, bytes.size(), now_);
    return bytes;
  }

  net::ConnectorHandshake NewHandshake(const std::string& client, net::JobSecret secret = {}) {
    net::HandshakeIdentity identity;
    identity.secret = secret;
    identity.purpose = net::HandshakePurpose::kStore;
    return net::ConnectorHandshake(identity, Rank(), client, net::NewNonce());
  }

  // Connects a client whose number is `name`, padded. Returns its handshake's end.
  net::HandshakeState Connect(StoreConnections::Id id, std::string name,
                              net::JobSecret secret = {}) {
    name.resize(kStoreIdBytes, '.');
    core_->connections().Open(id, "tester", now_);
    net::ConnectorHandshake handshake = NewHandshake(name + "test client", secret);
    handshake.Feed(Written(id));
    core_->connections().Receive(id, handshake.TakeOutput(), now_);
    handshake.Feed(Written(id));
    return handshake.state();
  }

  void Ask(StoreConnections::Id id, const StoreRequest& request) {
    core_->connections().Receive(id, EncodeRequest(request), now_);
  }

  Replies Read(StoreConnections::Id id) {
    Replies replies;
    std::string bytes = Written(id);
    absl::string_view rest = bytes;
    StoreFrameReader reader(kStoreReplyBytesMax);
    while (!rest.empty()) {
      size_t used = 0;
      auto frame = reader.Feed(rest, &used);
      EXPECT_TRUE(frame.ok()) << frame.status();
      if (!frame.ok()) break;
      rest.remove_prefix(used);
      if (!frame->has_value()) continue;
      auto result = DecodeReply(**frame);
      EXPECT_TRUE(result.ok()) << result.status();
      EXPECT_TRUE(replies.emplace((*frame)->id, *result).second) << "answered twice";
    }
    return replies;
  }

  static StoreCoreOptions Options() {
    StoreCoreOptions options;
    options.memory_limit = MiB(1);
    options.output_pause = KiB(64);
    options.output_limit = KiB(256);
    return options;
  }

  absl::Time now_ = absl::UnixEpoch();
  std::map<StoreConnections::Id, std::string> written_;
  std::unique_ptr<StoreCore> core_ = std::make_unique<StoreCore>(Options());
};

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_STORE_STORE_CORE_FIXTURE_H_
