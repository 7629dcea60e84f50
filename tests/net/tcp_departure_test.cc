// A link that is closed while frames still come: its streams go to a Departure, which reads on
// where they are and takes nothing of the link with it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "net/tcp/departure.h"

namespace weft::net {
namespace {

constexpr char kGone = 0x5D;

// What a link has of its streams: it wants payloads in memory of its own.
struct Owner final : StreamOwner {
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override {
    payload.assign(header.length, '.');
    return PayloadTarget{.out = reinterpret_cast<std::byte*>(payload.data())};
  }
  absl::Status OnFrameDone(const FrameHeader& header, absl::string_view) override {
    done.push_back(header.type);
    return absl::OkStatus();
  }
  void OnSent(uint32_t) override {}
  void OnWritable() override {}
  void OnEnded(const absl::Status& why, absl::Time) override { ended = why; }
  void OnLost(Stream&, const absl::Status& why, bool, absl::Time) override { ended = why; }
  void OnResumed(Stream&, uint64_t, absl::Time) override {}

  std::string payload;
  std::vector<FrameType> done;
  absl::Status ended;
};

struct NoResumption final : Resumption {
  void Begin(size_t, absl::Time, absl::Time) override {}
  void End(size_t) override {}
  void SetOwner(ResumptionOwner&) override {}
  void Close() override {}
};

class TcpDeparture : public testing::Test {
 protected:
  TcpDeparture() : poller_(*Poller::Create()) {}

  // The other end is peers_.back().
  std::unique_ptr<Stream> Open() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
    peers_.emplace_back(ends[1]);
    auto stream = std::make_unique<Stream>(*poller_, link_, /*resumable=*/true);
    EXPECT_TRUE(stream->Start(FileDescriptor(ends[0]), "").ok());
    return stream;
  }
  void Say(size_t peer, absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(peers_[peer].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_TRUE(sent > 0 || errno == EAGAIN) << std::strerror(errno);
      if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
      Turn();
    }
  }
  void Turn() {
    for (int i = 0; i < 5; ++i) poller_->Turn(now_);
  }
  static std::string Header(FrameType type, uint64_t length) {
    FrameHeader header;
    header.type = type;
    header.length = length;
    return std::string(reinterpret_cast<const char*>(&header), sizeof header);
  }
  static std::string Positions(const std::vector<uint64_t>& taken) {
    return std::string(reinterpret_cast<const char*>(taken.data()),
                       taken.size() * sizeof(uint64_t));
  }
  // Both streams have said something that the other side has not taken. Gives how much, with the
  // goodbye.
  uint64_t SayFirst() {
    for (int i = 0; i < 2; ++i) {
      streams_.push_back(Open());
      OutFrame frame;
      frame.header.type = FrameType::kNotice;
      frame.owned = "what was reported as sent";
      frame.header.length = frame.owned.size();
      streams_.back()->Queue(frame);
      streams_.back()->Write(now_);
      seen_.push_back(streams_.back().get());
    }
    return 2 * sizeof(FrameHeader) + std::strlen("what was reported as sent");
  }
  void Depart() {
    Departure::Link link;
    link.streams = std::move(streams_);
    link.lost = {false, false};
    link.resumption = std::make_unique<NoResumption>();
    link.goodbye.header.type = FrameType::kGoodbye;
    link.dead_after = absl::Seconds(1);
    departure_ = std::make_unique<Departure>(*poller_, std::move(link), [](Departure*) {});
    // The link's memory is somebody else's.
    std::fill(link_.payload.begin(), link_.payload.end(), kGone);
    Turn();
  }
  void ExpectNothingOfTheLink() {
    EXPECT_EQ(link_.payload, std::string(link_.payload.size(), kGone));
    EXPECT_TRUE(link_.done.empty());
    EXPECT_TRUE(link_.ended.ok()) << link_.ended;
  }

  const absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<Poller> poller_;
  Owner link_;
  std::vector<FileDescriptor> peers_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> seen_;  // the same
  std::unique_ptr<Departure> departure_;
};

TEST_F(TcpDeparture, APayloadThatIsHalfThereGoesOnWhereTheNewOwnerWantsIt) {
  Owner next;
  const std::unique_ptr<Stream> stream = Open();
  Say(0, Header(FrameType::kAddress, 10) + "half ");
  ASSERT_EQ(link_.payload.substr(0, 5), "half ");
  stream->SetOwner(next);
  std::fill(link_.payload.begin(), link_.payload.end(), kGone);
  Say(0, "there");
  EXPECT_EQ(next.payload, "half there");
  EXPECT_EQ(next.done, std::vector<FrameType>{FrameType::kAddress});
  ExpectNothingOfTheLink();
}

TEST_F(TcpDeparture, WhatHalfAFrameSaysIsTakenIsTaken) {
  const uint64_t all = SayFirst();
  const std::string taken = Positions({all, all});
  Say(1, Header(FrameType::kTaken, taken.size()) + taken.substr(0, 11));
  Depart();
  EXPECT_TRUE(seen_[0]->HasUntaken() && seen_[1]->HasUntaken());
  Say(1, taken.substr(11));
  EXPECT_FALSE(seen_[0]->HasUntaken() || seen_[1]->HasUntaken());
  EXPECT_TRUE(seen_[0]->open() && seen_[1]->open());
  ExpectNothingOfTheLink();
}

// The sockets of verbs, ucx and multipath carry address frames both ways until they are closed.
TEST_F(TcpDeparture, AddressesAreDroppedAndDisturbNoOtherFrame) {
  const uint64_t all = SayFirst();
  const std::string taken = Positions({all, all});
  Say(0, Header(FrameType::kAddress, 100) + std::string(60, 'a'));
  Depart();
  Say(1, Header(FrameType::kTaken, taken.size()) + taken.substr(0, 11));
  Say(0, std::string(40, 'a') + Header(FrameType::kAddress, kWorkerAddressBytesMax) +
             std::string(kWorkerAddressBytesMax, 'b'));
  Say(1, taken.substr(11));
  EXPECT_FALSE(seen_[0]->HasUntaken() || seen_[1]->HasUntaken());
  EXPECT_TRUE(seen_[0]->open() && seen_[1]->open());
  ExpectNothingOfTheLink();
}

TEST_F(TcpDeparture, AFrameThatDoesNotBelongThereEndsItsStream) {
  for (const std::string& lie :
       {Header(FrameType::kTaken, 0), Header(FrameType::kTaken, 3 * sizeof(uint64_t)),
        Header(FrameType::kData, 64)}) {
    peers_.clear(), streams_.clear(), seen_.clear();
    SayFirst();
    Depart();
    Say(0, lie);
    EXPECT_FALSE(seen_[0]->open());
    EXPECT_TRUE(seen_[1]->open());
    departure_.reset();
  }
}

}  // namespace
}  // namespace weft::net
