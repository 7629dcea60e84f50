// Datagrams between two real sockets of loopback, several of them coalesced where the kernel does
// that.
#include "net/multipath/udp/reader.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "net/tcp/socket.h"

namespace weft::net::multipath {
namespace {

constexpr size_t kChunk = 8000;
constexpr uint64_t kMessage = 3;
constexpr int kPatienceMilliseconds = 60'000;  // a bound on hangs

std::string ChunkOf(uint64_t index, size_t size = kChunk) {
  std::string chunk(size, static_cast<char>('a' + index));
  return chunk;
}

class ReaderTest : public testing::Test, private DatagramSink, private ChunkPlaces {
 protected:
  void SetUp() override {
    for (FileDescriptor* fd : {&sender_, &receiver_}) {
      *fd = FileDescriptor(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      ASSERT_EQ(bind(fd->get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    }
    int on = 1;
    setsockopt(receiver_.get(), IPPROTO_UDP, UDP_GRO, &on, sizeof(on));
    sockaddr_in to{};
    socklen_t size = sizeof(to);
    ASSERT_EQ(getsockname(receiver_.get(), reinterpret_cast<sockaddr*>(&to), &size), 0);
    ASSERT_EQ(connect(sender_.get(), reinterpret_cast<sockaddr*>(&to), size), 0);
  }

  static std::string DatagramOf(uint64_t offset, const std::string& chunk) {
    Packet packet;
    packet.type = PacketType::kData;
    packet.source = 1;
    packet.message = kMessage;
    packet.offset = offset;
    packet.length = 5 * kChunk;
    std::string bytes(kEnvelopeBytes, '\0');
    WriteHeader(packet, {}, false, bytes);
    return bytes + chunk;
  }
  // All in one segmented send, where there is such a thing.
  void Send(const std::vector<std::string>& datagrams) {
    std::string all;
    for (const std::string& one : datagrams) all += one;
    int segment = static_cast<int>(datagrams[0].size());
    bool is_segmented =
        setsockopt(sender_.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0;
    if (is_segmented &&
        send(sender_.get(), all.data(), all.size(), 0) == static_cast<ssize_t>(all.size())) {
      return;
    }
    int none = 0;
    setsockopt(sender_.get(), IPPROTO_UDP, UDP_SEGMENT, &none, sizeof(none));
    for (const std::string& one : datagrams) {
      ASSERT_EQ(send(sender_.get(), one.data(), one.size(), 0), static_cast<ssize_t>(one.size()));
    }
  }
  void ReadUntil(size_t count) {
    bool is_bulk = true;  // as after large ones
    while (taken_ < count) {
      pollfd fd{receiver_.get(), POLLIN, 0};
      ASSERT_EQ(poll(&fd, 1, kPatienceMilliseconds), 1);
      reader_.Read(receiver_.get(), is_bulk);
    }
  }

  ChunkPlaces* PlacesOf(absl::Span<const std::byte>) override { return is_known_ ? this : nullptr; }
  std::byte* PlaceFor(const ChunkAddress& chunk, size_t bytes) override {
    bool is_missing = chunk.message == kMessage && chunk.offset + bytes <= buffer_.size() &&
                      !arrived_.contains(chunk.offset);
    return is_missing ? Bytes() + chunk.offset : nullptr;
  }
  void Take(const Received& datagram) override {
    ++taken_;
    auto address = AddressOf(datagram.header);
    if (!address || !is_known_) return;
    placed_ += datagram.is_placed ? 1 : 0;
    if (!arrived_.insert(address->offset).second) return;
    EXPECT_TRUE(datagram.is_placed == (datagram.chunk.data() == Bytes() + address->offset));
    if (!datagram.is_placed) {
      std::memcpy(Bytes() + address->offset, datagram.chunk.data(), datagram.chunk.size());
    }
  }
  std::byte* Bytes() { return reinterpret_cast<std::byte*>(buffer_.data()); }

  FileDescriptor sender_, receiver_;
  DatagramReader reader_{*this};
  bool is_known_ = true;
  std::string buffer_ = std::string(5 * kChunk, '.');
  std::set<uint64_t> arrived_;
  size_t taken_ = 0, placed_ = 0;
};

TEST_F(ReaderTest, ChunksInOrderAreReadToTheirPlaces) {
  std::string want;
  std::vector<std::string> datagrams;
  for (uint64_t i = 0; i < 5; ++i) {
    // The last is shorter.
    std::string chunk = ChunkOf(i, i == 4 ? 100 : kChunk);
    datagrams.push_back(DatagramOf(i * kChunk, chunk));
    want += chunk;
  }
  Send(datagrams);
  ReadUntil(5);
  EXPECT_EQ(buffer_.substr(0, want.size()), want);
  EXPECT_GE(placed_, 4U);
}

TEST_F(ReaderTest, ChunksOutOfOrderEndWhereTheyBelong) {
  std::vector<std::string> datagrams;
  for (uint64_t i : {1, 3, 0, 2, 4}) datagrams.push_back(DatagramOf(i * kChunk, ChunkOf(i)));
  Send(datagrams);
  ReadUntil(5);
  std::string want;
  for (uint64_t i = 0; i < 5; ++i) want += ChunkOf(i);
  EXPECT_EQ(buffer_, want);
}

TEST_F(ReaderTest, WhatHasArrivedIsNotWrittenAgain) {
  Send({DatagramOf(kChunk, ChunkOf(1))});
  ReadUntil(1);
  Send({DatagramOf(0, ChunkOf(0)), DatagramOf(kChunk, ChunkOf(7)),
        DatagramOf(2 * kChunk, ChunkOf(2))});
  ReadUntil(4);
  EXPECT_EQ(buffer_.substr(0, 3 * kChunk), ChunkOf(0) + ChunkOf(1) + ChunkOf(2));
}

TEST_F(ReaderTest, UnauthenticatedDatagramsAreWrittenNowhere) {
  is_known_ = false;
  Send({DatagramOf(0, ChunkOf(0)), DatagramOf(kChunk, ChunkOf(1))});
  ReadUntil(2);
  EXPECT_EQ(buffer_, std::string(5 * kChunk, '.'));
}

TEST_F(ReaderTest, AShortEndOfWhatWasCoalescedIsTakenAsItIs) {
  Send({DatagramOf(0, ChunkOf(0)), DatagramOf(kChunk, ChunkOf(1)), "short"});
  ReadUntil(3);
  EXPECT_EQ(buffer_.substr(0, 2 * kChunk), ChunkOf(0) + ChunkOf(1));
}

}  // namespace
}  // namespace weft::net::multipath
