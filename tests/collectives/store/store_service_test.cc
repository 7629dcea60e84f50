// The store's sockets, in a poller that the test turns.
#include "collectives/store/server/store_service.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/poller.h"
#include "base/socket_address.h"
#include "collectives/store/client/store_client_core.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {
namespace {

constexpr int kTurnsMost = 1000;

// Writes and reads when it is told to.
class Client {
 public:
  Client(const SocketAddress& server, const std::string& name)
      : socket_(::socket(server.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)), core_({}, Hello(name)) {
    EXPECT_EQ(connect(socket_.get(), server.get(), server.size()), 0);
    core_.Connected(/*local=*/true);
    Write();
  }

  void Ask(StoreRequest request) {
    request.timeout = absl::Minutes(10);
    core_.Call(std::move(request));
    Write();
  }

  // All answers that have come.
  const std::vector<StoreResult>& Read() {
    std::array<char, 4096> buffer;
    ssize_t got = 0;
    while ((got = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0) {
      EXPECT_TRUE(core_.Receive({buffer.data(), static_cast<size_t>(got)}).ok());
    }
    for (auto& answer : core_.TakeAnswers()) answers_.push_back(std::move(answer.result));
    return answers_;
  }
  bool IsReady() const { return core_.state() == StoreClientCore::State::kReady; }

 private:
  static StoreHello Hello(const std::string& name) {
    StoreHello hello;
    hello.id = NewStoreId();
    hello.name = name;
    return hello;
  }
  void Write() {
    std::array<iovec, 8> parts;
    while (core_.HasOutput()) {
      const size_t count = core_.Gather(parts.data(), parts.size());
      const ssize_t wrote = writev(socket_.get(), parts.data(), static_cast<int>(count));
      ASSERT_GT(wrote, 0);
      core_.Wrote(static_cast<size_t>(wrote));
    }
  }

  FileDescriptor socket_;
  StoreClientCore core_;
  std::vector<StoreResult> answers_;
};

class StoreServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    poller_ = Poller::Create().value();
    address_ = ResolveHostPort(absl::StrCat("unix:weft-store-service-", getpid())).value()[0];
    service_ = std::make_unique<StoreService>(*poller_, core_, ListenForStore(address_).value(),
                                              address_, /*limit=*/8);
  }

  // Takes what is there, and writes the answers.
  void Turn() {
    poller_->Sleep(absl::InfinitePast());
    service_->Settle(poller_->now(), [] {});
  }
  template <typename Condition>
  bool TurnUntil(Condition condition) {
    for (int turn = 0; turn < kTurnsMost; ++turn) {
      if (condition()) return true;
      Turn();
    }
    return false;
  }

  static StoreCoreOptions Options() {
    StoreCoreOptions options;
    options.output_pause = KiB(64);
    return options;
  }

  std::unique_ptr<Poller> poller_;
  SocketAddress address_;
  StoreCore core_{Options()};
  std::unique_ptr<StoreService> service_;
};

// The request of another makes an answer that is too much for it, and its own next request has come
// in the same round.
TEST_F(StoreServiceTest, AClientThatIsPausedInTheMidstOfARoundKeepsItsConnection) {
  Client last(address_, "last"), waiting(address_, "waiting");
  ASSERT_TRUE(TurnUntil([&] {
    (void)last.Read(), (void)waiting.Read();
    return last.IsReady() && waiting.IsReady();
  }));
  StoreRequest gather;
  gather.op = StoreOp::kAllGather;
  gather.keys = {"k"};
  gather.values = {"short"};
  gather.rank = 1;
  gather.size = 2;
  waiting.Ask(gather);
  ASSERT_TRUE(TurnUntil([&] { return core_.waiting() == 1; }));
  Turn();  // nothing: epoll has no old events left, and reports new ones in the order of writes
  gather.rank = 0;
  gather.values = {std::string(90000, 'v')};
  last.Ask(gather);
  StoreRequest set;
  set.op = StoreOp::kSet;
  set.keys = {"next"};
  set.values = {"value"};
  waiting.Ask(set);
  Turn();
  EXPECT_EQ(core_.connections().size(), 2);
  EXPECT_EQ(core_.keys(), 0) << "the pause came first";
  ASSERT_TRUE(TurnUntil([&] { return waiting.Read().size() == 2; }));
  for (const StoreResult& answer : waiting.Read()) EXPECT_TRUE(answer.status.ok());
  EXPECT_EQ(core_.keys(), 1);
}

}  // namespace
}  // namespace weft::collectives
