// A client without sockets: descriptors that come with replies.
#include "collectives/store/client/store_client_core.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

std::string Whole(const StoreFrameOut& frame) {
  return std::string(frame.head.view()) + (frame.body ? *frame.body : "");
}

FileDescriptor MemoryFile(const std::string& text, int seals = kSeals) {
  FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

class StoreClientCoreTest : public testing::Test {
 protected:
  void SetUp() override {
    core_.Connected(/*local=*/true);
    StoreReply hello;
    hello.values = 2;
    hello.body = std::make_shared<const std::string>(EncodeValue(std::string(kStoreIdBytes, 'i')) +
                                                     EncodeValue("relay"));
    ASSERT_TRUE(core_.Receive(Whole(EncodeReply(StoreOp::kHello, 0, hello))).ok());
    StoreRequest request;
    request.op = StoreOp::kMultiGet;
    request.keys = {"a", "b"};
    id_ = core_.Call(std::move(request));
  }

  // The reply to that whose two values lie in a file of so many bytes.
  std::string Announcement(uint64_t bytes) const {
    StoreReply reply;
    reply.values = 2;
    reply.file = std::make_shared<const FileDescriptor>(MemoryFile("x"));
    reply.file_bytes = bytes;
    return Whole(EncodeReply(StoreOp::kMultiGet, id_, reply));
  }

  absl::Status Load(FileDescriptor file, uint64_t bytes) {
    core_.ReceiveFile(std::move(file));
    absl::Status status = core_.Receive(Announcement(bytes));
    if (!status.ok()) return status;
    auto answers = core_.TakeAnswers();
    if (answers.size() != 1) return absl::InternalError("no answer");
    result_ = std::move(answers[0].result);
    return LoadFile(result_);
  }

  StoreClientCore core_{net::JobSecret{}, StoreHello{std::string(kStoreIdBytes, 'c')}};
  uint64_t id_ = 0;
  StoreResult result_;
};

TEST_F(StoreClientCoreTest, ReadsValuesFromASealedFile) {
  std::string text = EncodeValue("one") + EncodeValue("two");
  ASSERT_TRUE(Load(MemoryFile(text), text.size()).ok());
  EXPECT_THAT(result_.values, ElementsAre("one", "two"));
}

TEST_F(StoreClientCoreTest, AFileThatMayStillShrinkOrChangeIsNotMapped) {
  std::string text = EncodeValue("one") + EncodeValue("two");
  EXPECT_THAT(Load(MemoryFile(text, kSeals & ~F_SEAL_SHRINK), text.size()).ToString(),
              HasSubstr("no sealed memory file"));
}

TEST_F(StoreClientCoreTest, AFileOfAnotherSizeThanItsFrameSaysIsNotMapped) {
  std::string text = EncodeValue("one") + EncodeValue("two");
  EXPECT_THAT(Load(MemoryFile(text), text.size() + 4096).ToString(),
              HasSubstr("14 bytes, its frame says 4110"));
}

TEST_F(StoreClientCoreTest, WhatIsNoMemoryFileIsNotMapped) {
  EXPECT_THAT(Load(FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)), 14).ToString(),
              HasSubstr("no sealed memory file"));
}

TEST_F(StoreClientCoreTest, AFrameWithoutItsDescriptorEndsTheConnection) {
  EXPECT_THAT(core_.Receive(Announcement(14)).ToString(), HasSubstr("descriptor is missing"));
}

TEST_F(StoreClientCoreTest, ADescriptorThatNobodyAskedForIsClosedAndEndsTheConnection) {
  FileDescriptor file = MemoryFile("x");
  int fd = file.get();
  core_.ReceiveFile(std::move(file));
  StoreReply reply;  // of a kind that brings none
  reply.values = 2;
  reply.body = std::make_shared<const std::string>(EncodeValue("one") + EncodeValue("two"));
  EXPECT_THAT(core_.Receive(Whole(EncodeReply(StoreOp::kMultiGet, id_, reply))).ToString(),
              HasSubstr("a descriptor that no reply"));
  EXPECT_FALSE(IsOpen(fd));
}

TEST_F(StoreClientCoreTest, ADescriptorWaitsForTheRestOfItsFrame) {
  std::string text = EncodeValue("one") + EncodeValue("two");
  std::string frame = Announcement(text.size());
  core_.ReceiveFile(MemoryFile(text));
  for (char byte : frame) ASSERT_TRUE(core_.Receive(std::string(1, byte)).ok());
  auto answers = core_.TakeAnswers();
  ASSERT_EQ(answers.size(), 1);
  ASSERT_TRUE(LoadFile(answers[0].result).ok());
  EXPECT_THAT(answers[0].result.values, ElementsAre("one", "two"));
}

TEST_F(StoreClientCoreTest, ManyDescriptorsBesideOneFrameAreClosed) {
  std::string frame = Announcement(14);
  std::vector<int> fds;
  for (size_t i = 0; i <= StoreClientCore::kFilesMax; ++i) {
    FileDescriptor file = MemoryFile("x");
    fds.push_back(file.get());
    core_.ReceiveFile(std::move(file));
  }
  EXPECT_FALSE(core_.Receive(frame.substr(0, 8)).ok());
  for (int fd : fds) EXPECT_FALSE(IsOpen(fd));
}

// A client and a server that meet over TCP, whose bytes the test carries.
class StoreMeetingTest : public testing::Test {
 protected:
  static StoreCoreOptions ServerOptions(uint8_t secret) {
    StoreCoreOptions options;
    options.secret.fill(secret);
    return options;
  }
  static net::JobSecret Secret(uint8_t byte) {
    net::JobSecret secret;
    secret.fill(byte);
    return secret;
  }

  void Connect() {
    server_.connections().Open(++connection_, "test", now_);
    client_.Connected(/*local=*/false);
  }
  void Break() {
    server_.connections().Close(connection_, now_);
    client_.Lost();
  }
  absl::Status ToClient() {
    std::string bytes;
    for (const StoreConnections::Output& output : server_.connections().TakeOutput())
      bytes += Whole(output.frame);
    return client_.Receive(bytes);
  }
  void ToServer() {
    std::string bytes;
    while (client_.HasOutput()) {
      iovec part{};
      client_.Gather(&part, 1);
      bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
      client_.Wrote(part.iov_len);
    }
    server_.connections().Receive(connection_, bytes, now_);
  }
  uint64_t Set(const std::string& key) {
    StoreRequest request;
    request.op = StoreOp::kSet;
    request.keys = {key};
    request.values = {"value"};
    return client_.Call(std::move(request));
  }

  const absl::Time now_ = absl::Now();
  uint64_t connection_ = 0;
  StoreCore server_{ServerOptions(1)};
  StoreClientCore client_{Secret(1), StoreHello{std::string(kStoreIdBytes, 'c')}};
};

TEST_F(StoreMeetingTest, RequestsGoWithTheFirstHello) {
  Connect();
  uint64_t before = Set("before the challenge");
  ASSERT_TRUE(ToClient().ok());
  uint64_t after = Set("before the verdict");
  ToServer();
  EXPECT_EQ(server_.requests(), 2);
  EXPECT_TRUE(client_.TakeAnswers().empty());
  ASSERT_TRUE(ToClient().ok());
  EXPECT_EQ(client_.state(), StoreClientCore::State::kReady);
  auto answers = client_.TakeAnswers();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[0].id, before);
  EXPECT_EQ(answers[1].id, after);
  EXPECT_FALSE(client_.HasOutput());  // nothing goes twice
}

TEST_F(StoreMeetingTest, OnALaterConnectionTheServerShowsFirstThatItIsTheSame) {
  Connect();
  ASSERT_TRUE(ToClient().ok());
  ToServer();
  ASSERT_TRUE(ToClient().ok());
  Break();
  Set("on the next connection");
  Connect();
  ASSERT_TRUE(ToClient().ok());
  ToServer();
  EXPECT_EQ(server_.requests(), 0);
  ASSERT_TRUE(ToClient().ok());
  ToServer();
  EXPECT_EQ(server_.requests(), 1);
}

TEST_F(StoreMeetingTest, WhatGoesWithTheHelloGoesAgainAfterALostConnection) {
  Connect();
  Set("key");
  ASSERT_TRUE(ToClient().ok());
  ToServer();
  Break();  // the reply is lost
  (void)server_.connections().TakeOutput();
  Connect();
  ASSERT_TRUE(ToClient().ok());
  ToServer();
  ASSERT_TRUE(ToClient().ok());
  EXPECT_EQ(client_.TakeAnswers().size(), 1U);
  EXPECT_EQ(server_.keys(), 1);
}

TEST_F(StoreMeetingTest, AServerOfAnotherSecretDoesNothingOfWhatComesWithTheHello) {
  StoreClientCore unauthenticated(Secret(2), StoreHello{std::string(kStoreIdBytes, 's')});
  server_.connections().Open(++connection_, "test", now_);
  unauthenticated.Connected(/*local=*/false);
  StoreRequest request;
  request.op = StoreOp::kSet;
  request.keys = {"key"};
  request.values = {"value"};
  unauthenticated.Call(std::move(request));
  ASSERT_TRUE(unauthenticated.Receive(Whole(server_.connections().TakeOutput().at(0).frame)).ok());
  std::array<iovec, 4> parts;
  size_t count = unauthenticated.Gather(parts.data(), parts.size());
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  server_.connections().Receive(connection_, bytes, now_);
  EXPECT_EQ(server_.requests(), 0);
  EXPECT_EQ(server_.keys(), 0);
  EXPECT_EQ(server_.connections().TakeClosings().size(), 1U);
}

}  // namespace
}  // namespace weft::collectives
