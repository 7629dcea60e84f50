// A name service that does not answer holds nobody up. This program's own getaddrinfo() stands
// before the system's: what it is asked about "slow.test" it says once it is told to.
#include "collectives/store/client/store_addresses.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/relay/store_relay.h"
#include "collectives/store/server/store_server.h"

namespace weft::collectives {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Leaked: a look-up may outlive main().
class SlowService {
 public:
  static SlowService& Get() {
    static auto& service = *new SlowService();
    return service;
  }
  void Answer() {
    std::lock_guard lock(mutex_);
    answers_ = true;
    changed_.notify_all();
  }
  void Silence() {
    std::lock_guard lock(mutex_);
    answers_ = false;
  }
  void Await() {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.wait(lock, [this] { return answers_; });
  }
  int asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool answers_ = false;
  int asked_ = 0;
};

class StoreAddressesTest : public testing::Test {
 protected:
  void SetUp() override { SlowService::Get().Silence(); }
  void TearDown() override { SlowService::Get().Answer(); }
};

TEST_F(StoreAddressesTest, NumericOnesAreKnownAtOnceAndNobodyIsAsked) {
  int before = SlowService::Get().asked();
  for (const char* name : {"127.0.0.1:80", "[::1]:80", "unix:there"}) {
    StoreAddresses addresses(name);
    auto known = addresses.Poll();
    ASSERT_TRUE(known.has_value()) << name;
    ASSERT_TRUE(known->ok()) << known->status();
    EXPECT_EQ((**known)[0].ToString(), name);
    addresses.Refresh();
  }
  StoreAddresses malformed("nonsense");
  EXPECT_TRUE(absl::IsInvalidArgument(malformed.Await(SystemClock().Now() + kPatience).status()));
  EXPECT_EQ(SlowService::Get().asked(), before);
}

TEST_F(StoreAddressesTest, AsksInTheBackgroundAndRemembersTheAnswer) {
  StoreAddresses addresses("slow.test:80");
  EXPECT_FALSE(addresses.Poll().has_value());  // and not: hangs
  absl::Status late = addresses.Await(SystemClock().Now() + absl::Milliseconds(5)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("slow.test:80"));
  SlowService::Get().Answer();
  auto known = addresses.Await(SystemClock().Now() + kPatience);
  ASSERT_TRUE(known.ok()) << known.status();
  EXPECT_EQ((*known)[0].ToString(), "127.0.0.1:80");
  SlowService::Get().Silence();
  addresses.Refresh();
  ASSERT_TRUE(addresses.Poll().has_value());
  EXPECT_TRUE(addresses.Poll()->ok());
}

TEST_F(StoreAddressesTest, ARelayServesItsRanksWhileItsRootIsLookedUp) {
  auto server = StoreServer::Start({});
  ASSERT_TRUE(server.ok()) << server.status();
  StoreRelayOptions options;
  options.up = absl::StrCat("slow.test:", (*server)->port());
  options.ranks = 1;
  options.name = "relay";
  options.connect_timeout = kPatience;
  auto relay = StoreRelay::Start(options);
  ASSERT_TRUE(relay.ok()) << relay.status();
  StoreClientOptions rank;
  rank.address = (*relay)->address();
  auto client = StoreClient::Connect(rank);
  ASSERT_TRUE(client.ok()) << client.status();
  absl::Status set;
  std::thread sets([&] { set = (*client)->Set("key", "value"); });
  // Others are served meanwhile.
  EXPECT_TRUE(StoreClient::Connect(rank).ok());
  SlowService::Get().Answer();
  sets.join();
  EXPECT_TRUE(set.ok()) << set;
  EXPECT_EQ((*server)->statistics().keys, 1);
}

TEST_F(StoreAddressesTest, AClientFindsItsServerByName) {
  SlowService::Get().Answer();
  auto server = StoreServer::Start({});
  ASSERT_TRUE(server.ok()) << server.status();
  StoreClientOptions options;
  options.address = absl::StrCat("slow.test:", (*server)->port());
  auto client = StoreClient::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->Add("n", 1).value(), 1);
}

}  // namespace
}  // namespace weft::collectives

// The program's definition comes before the C library's.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (node == nullptr || std::string(node) != "slow.test" || numeric) {
    return next(node, service, hints, result);
  }
  weft::collectives::SlowService::Get().Await();
  return next("127.0.0.1", service, hints, result);
}
