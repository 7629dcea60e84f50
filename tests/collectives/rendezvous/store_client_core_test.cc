// A client without sockets: descriptors that come with replies.
#include "collectives/rendezvous/store_client_core.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/rendezvous/store_protocol.h"

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

}  // namespace
}  // namespace weft::collectives
