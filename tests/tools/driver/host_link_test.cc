// An executor's link to its driver's store, over connections that break or hold back replies.
#include "tools/driver/host_link.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "tests/collectives/store/store_fixture.h"
#include "tests/net/cutting_proxy.h"

namespace weft::driver {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(10);
constexpr absl::Duration kCallTimeout = absl::Seconds(1);  // a call takes less than 1 ms

class HostLinkTest : public collectives::StoreFixture {
 protected:
  void SetUp() override {
    StoreFixture::SetUp();
    direct_ = Connect(server_->address());
    proxy_ = std::make_unique<net::CuttingProxy>(server_->address(), /*seed=*/3);
    collectives::StoreClientOptions options = Options(proxy_->address().ToString());
    options.call_timeout = kCallTimeout;
    options.reconnect = collectives::kPatience;
    auto client = collectives::StoreClient::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto link = HostLink::Join(client_.get(), "a", kPeriod);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }
  HostReport Held() {
    return *ParseHostReport(*direct_->Get(ReportKey("a"), collectives::kPatience));
  }
  // Until a report that is sent from now on has arrived, and its reply here.
  void UntilContact() {
    const absl::Time now = clock_.Now();
    Until([&] { return link_->contact() > now || !link_->status().ok(); });
    EXPECT_EQ(link_->status(), absl::OkStatus());
  }

  SystemClock clock_;
  std::unique_ptr<collectives::StoreClient> direct_, client_;
  std::unique_ptr<net::CuttingProxy> proxy_;
  std::unique_ptr<HostLink> link_;
};

TEST_F(HostLinkTest, AReportThatArrivedWithoutAReplyInTimeIsNotTakenForAnotherExecutors) {
  UntilContact();
  proxy_->Hold(/*client=*/false, /*server=*/true);
  // The replies to reports are held back: the store has one, and the link has given its reply up.
  Until([&] { return clock_.Now() - link_->contact() > 3 * kCallTimeout; });
  const HostReport arrived = Held();
  proxy_->Hold(false, false);
  UntilContact();
  EXPECT_EQ(Held().writer, arrived.writer);
  EXPECT_GT(Held().beat, arrived.beat);
}

TEST_F(HostLinkTest, AReportWhoseReplyIsLostWithItsConnectionIsSentAgainAndCountsOnce) {
  UntilContact();
  for (int cut = 0; cut < 5; ++cut) {
    proxy_->Hold(false, true);
    // A report goes out and is executed within this time.
    const int64_t beat = Held().beat;
    Until([&] { return Held().beat > beat; });
    proxy_->Cut();
    Until([&] { return proxy_->cuts() > cut; });
    proxy_->Hold(false, false);
    UntilContact();
  }
}

TEST_F(HostLinkTest, AnExecutorWhosePlaceAnotherHasTakenLearnsOfIt) {
  UntilContact();
  const auto second = HostLink::Join(direct_.get(), "a", kPeriod);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->incarnation(), link_->incarnation() + 1);
  Until([&] { return !link_->status().ok(); });
  EXPECT_TRUE(absl::IsAborted(link_->status()));
  EXPECT_EQ((*second)->status(), absl::OkStatus());
}

}  // namespace
}  // namespace weft::driver
