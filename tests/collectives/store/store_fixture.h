// A server, and clients of it, for the tests of what goes wrong.
#ifndef WEFT_TESTS_COLLECTIVES_STORE_STORE_FIXTURE_H_
#define WEFT_TESTS_COLLECTIVES_STORE_STORE_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"

namespace weft::collectives {

// A bound on hangs.
inline constexpr absl::Duration kPatience = absl::Seconds(30);

inline FileDescriptor ConnectTo(const std::string& address) {
  SocketAddress target = ResolveHostPort(address).value()[0];
  FileDescriptor socket(::socket(target.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.get(), target.get(), target.size()), 0);
  return socket;
}

class StoreFixture : public testing::Test {
 protected:
  void SetUp() override { Serve({}); }

  void Serve(StoreServerOptions options) {
    options.core.secret = secret_;
    options.core.description = "weft-run pid 123";
    auto server = StoreServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  StoreClientOptions Options(const std::string& address) const {
    StoreClientOptions options;
    options.address = address;
    options.secret = secret_;
    options.name = "test";
    options.reconnect = absl::Milliseconds(500);
    return options;
  }

  std::unique_ptr<StoreClient> Connect(const std::string& address) const {
    auto client = StoreClient::Connect(Options(address));
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  template <typename Condition>
  void Until(Condition condition) const {
    SystemClock clock;
    absl::Time end = clock.Now() + kPatience;
    while (!condition()) {
      ASSERT_LT(clock.Now(), end);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  const net::JobSecret secret_ = net::NewJobSecret();
  std::unique_ptr<StoreServer> server_;
};

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_STORE_STORE_FIXTURE_H_
