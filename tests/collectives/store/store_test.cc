// StoreClient over a real server, by IPv4 and IPv6: what it does beside the suite that all stores
// pass (store_conformance.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"

namespace weft::collectives {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A bound on a hang, never awaited by a test that passes.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(50);

class StoreTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    StoreServerOptions options;
    options.listen = GetParam();
    options.core.secret = secret_;
    options.core.description = "test server";
    auto server = StoreServer::Start(options);
    if (!server.ok() && options.listen[0] == '[') GTEST_SKIP() << "no IPv6: " << server.status();
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    store_ = Connect("first");
  }

  std::unique_ptr<StoreClient> Connect(std::string name) const {
    StoreClientOptions options;
    options.address = server_->address();
    options.secret = secret_;
    options.name = std::move(name);
    auto client = StoreClient::Connect(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  const net::JobSecret secret_ = net::NewJobSecret();
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<StoreClient> store_;
};

TEST_P(StoreTest, HoldsWhatWasSet) {
  EXPECT_EQ(store_->server(), "test server");
  ASSERT_TRUE(store_->Set("key", "value").ok());
  ASSERT_TRUE(store_->Set("empty", "").ok());
  std::string binary("\0\xff\n\0", 4);
  ASSERT_TRUE(store_->Set(binary, binary).ok());
  auto other = Connect("second");
  EXPECT_EQ(other->Get("key", kPatience).value(), "value");
  EXPECT_EQ(other->Get("empty", kPatience).value(), "");
  EXPECT_EQ(other->Get(binary, kPatience).value(), binary);
  ASSERT_TRUE(other->Set("key", "changed").ok());
  EXPECT_EQ(store_->Get("key", kPatience).value(), "changed");
  EXPECT_EQ(store_->KeyCount().value(), 3);
}

TEST_P(StoreTest, DeletesAndChecks) {
  ASSERT_TRUE(store_->MultiSet({"a", "b"}, {"1", "2"}).ok());
  EXPECT_TRUE(store_->Check({"a", "b"}).value());
  EXPECT_TRUE(store_->Delete("a").value());
  EXPECT_FALSE(store_->Delete("a").value());
  EXPECT_FALSE(store_->Check({"a", "b"}).value());
  EXPECT_TRUE(store_->Check({}).value());
  EXPECT_EQ(server_->statistics().waiting, 0);
}

TEST_P(StoreTest, AppendsWithoutTouchingWhatWasReadBefore) {
  ASSERT_TRUE(store_->Append("log", "one").ok());
  std::string before = store_->Get("log", kPatience).value();
  ASSERT_TRUE(store_->Append("log", ",two").ok());
  EXPECT_EQ(before, "one");
  EXPECT_EQ(store_->Get("log", kPatience).value(), "one,two");
}

TEST_P(StoreTest, GetsManyAtOnceOnceAllAreThere) {
  auto other = Connect("second");
  std::thread setter([&] {
    EXPECT_TRUE(other->Set("x", "1").ok());
    EXPECT_TRUE(other->MultiSet({"y", "z"}, {"2", "3"}).ok());
  });
  EXPECT_THAT(store_->MultiGet({"z", "x", "y", "x"}, kPatience).value(),
              ElementsAre("3", "1", "2", "1"));
  EXPECT_TRUE(store_->Wait({"x", "y", "z"}, kPatience).ok());
  setter.join();
  EXPECT_TRUE(store_->MultiGet({}, kPatience).value().empty());
  EXPECT_EQ(store_->MultiSet({"x"}, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(StoreTest, OneThreadsWaitHoldsUpNoOther) {
  std::thread waiter([&] { EXPECT_EQ(store_->Get("late", kPatience).value(), "come"); });
  while (server_->statistics().waiting == 0) std::this_thread::yield();
  EXPECT_EQ(store_->Add("n", 1).value(), 1);  // on the same client
  EXPECT_TRUE(store_->Set("late", "come").ok());
  waiter.join();
}

TEST_P(StoreTest, SaysWhatWasMissingWhenTimeIsUp) {
  ASSERT_TRUE(store_->Set("there", "").ok());
  absl::Status status = store_->Wait({"there", "absent/1", "absent/2"}, kShort);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'absent/1', 'absent/2'"));
  EXPECT_EQ(store_->Get("absent", absl::ZeroDuration()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(store_->MultiGet({"absent"}, kShort).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server_->statistics().waiting, 0);
}

TEST_P(StoreTest, NamesTheRanksThatMissABarrier) {
  auto other = Connect("second");
  absl::Status second;
  // Long enough for rank 1 to come after it, and to give up before it does.
  std::thread thread([&] { second = other->Barrier("b", 2, 4, absl::Seconds(2)); });
  const absl::Time limit = absl::Now() + kPatience;
  while (server_->statistics().waiting == 0 && absl::Now() < limit) std::this_thread::yield();
  const absl::Status first = store_->Barrier("b", 1, 4, kShort);
  thread.join();
  EXPECT_EQ(first.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(second.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(second.message()), HasSubstr("ranks missing"));
  EXPECT_THAT(std::string(second.message()), HasSubstr(": 0, 1, 3"));
}

TEST_P(StoreTest, RefusesMismatchesInABarrier) {
  EXPECT_EQ(store_->Barrier("b", 4, 4, kShort).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Barrier("b", 0, 0, kShort).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(store_->Barrier("once", 0, 1, kPatience).ok());
  EXPECT_EQ(store_->Barrier("once", 0, 1, kPatience).code(), absl::StatusCode::kFailedPrecondition);
  auto other = Connect("second");
  std::thread waiting([&] { EXPECT_TRUE(store_->Barrier("m", 0, 2, kPatience).ok()); });
  while (server_->statistics().waiting == 0) std::this_thread::yield();
  EXPECT_EQ(other->Barrier("m", 1, 3, kPatience).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(other->Barrier("m", 0, 2, kPatience).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(other->AllGather("m", 1, 2, "", kPatience).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(other->Barrier("m", 1, 2, kPatience).ok());
  waiting.join();
}

TEST_P(StoreTest, SixtyFourClientsMeetAndGather) {
  constexpr int kClients = 64;
  std::atomic<int> inside = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kClients; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = Connect(absl::StrCat("rank ", rank));
      ++inside;
      EXPECT_TRUE(client->Barrier("start", rank, kClients, kPatience).ok());
      EXPECT_EQ(inside, kClients);
      auto all = client->AllGather("names", rank, kClients, absl::StrCat("r", rank), kPatience);
      ASSERT_TRUE(all.ok()) << all.status();
      for (int i = 0; i < kClients; ++i) {
        EXPECT_EQ((*all)[static_cast<size_t>(i)], absl::StrCat("r", i));
      }
      EXPECT_TRUE(client->Add("count", 1).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store_->Add("count", 0).value(), kClients);
}

TEST_P(StoreTest, CarriesLargeValues) {
  std::string large(size_t{64} << 20, 'x');
  for (size_t i = 0; i < large.size(); i += 4093) large[i] = static_cast<char>(i);
  ASSERT_TRUE(store_->Set("large", large).ok());
  auto other = Connect("second");
  EXPECT_TRUE(other->Get("large", kPatience).value() == large);
  EXPECT_EQ(store_->Append("large", "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Set("larger", large + "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Set(std::string(4097, 'k'), "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(store_->Set(std::string(4096, 'k'), "").ok());
}

TEST_P(StoreTest, ManyThreadsOfOneClientLoseNoAddition) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(store_->Add("n", 1).ok());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store_->Add("n", 0).value(), kThreads * kRounds);
}

INSTANTIATE_TEST_SUITE_P(Loopback, StoreTest, testing::Values("127.0.0.1:0", "[::1]:0"),
                         [](const auto& info) { return info.param[0] == '[' ? "IPv6" : "IPv4"; });

}  // namespace
}  // namespace weft::collectives
