#include "net/multipath/packet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.h"

namespace weft::net::multipath {
namespace {

using testing::HasSubstr;

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

Packet DataPacket() {
  Packet packet;
  packet.type = PacketType::kData;
  packet.path = 7;
  packet.source = 11;
  packet.target = 12;
  packet.number = 1000;
  packet.floor = 990;
  packet.demand = 123'456;
  packet.message = 3;
  packet.offset = 4096;
  packet.length = 5000;
  return packet;
}

Packet AckPacket() {
  Packet packet;
  packet.type = PacketType::kAck;
  packet.source = 12;
  packet.target = 11;
  packet.base = (1ULL << 33) + 5;
  packet.messages = 9;
  packet.credit = 1ULL << 40;
  packet.echoes = {{packet.base - 3, 1500, Echo::kMarked},
                   {packet.base + 2, 0, Echo::kTrimmed},
                   {packet.base + 70, 1u << 30, Echo::kRefused}};
  packet.arrived = {0b100, 0b1000000};
  return packet;
}

TEST(MultipathPacketTest, DataComesBackAsItWasWritten) {
  std::string chunk(904, 'x'), bytes;
  Write(DataPacket(), AsBytes(chunk), true, bytes);
  EXPECT_EQ(bytes.size(), kDataHeaderBytes + chunk.size());
  auto parsed = Parse(AsBytes(bytes), true);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const Packet& packet = parsed->packet;
  EXPECT_EQ(packet.path, 7);
  EXPECT_EQ(packet.source, 11U);
  EXPECT_EQ(packet.target, 12U);
  EXPECT_EQ(packet.number, 1000U);
  EXPECT_EQ(packet.floor, 990U);
  EXPECT_EQ(packet.demand, 123'456U);
  EXPECT_EQ(packet.message, 3U);
  EXPECT_EQ(packet.offset, 4096U);
  EXPECT_EQ(packet.length, 5000U);
  EXPECT_EQ(parsed->chunk.size(), 904U);
}

// Numbers of echoes cross as their low 32 bits.
TEST(MultipathPacketTest, AcknowledgementsComeBackAsTheyWereWritten) {
  std::string bytes;
  Packet ack = AckPacket();
  Write(ack, {}, true, bytes);
  auto parsed = Parse(AsBytes(bytes), true);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->packet.base, ack.base);
  EXPECT_EQ(parsed->packet.messages, 9U);
  EXPECT_EQ(parsed->packet.credit, 1ULL << 40);
  EXPECT_EQ(parsed->packet.arrived, ack.arrived);
  ASSERT_EQ(parsed->packet.echoes.size(), 3U);
  EXPECT_EQ(parsed->packet.echoes[0].number, ack.base - 3);
  EXPECT_EQ(parsed->packet.echoes[0].held_ns, 1500U);
  EXPECT_EQ(parsed->packet.echoes[0].flags, Echo::kMarked);
  EXPECT_EQ(parsed->packet.echoes[2].number, ack.base + 70);
  EXPECT_EQ(parsed->packet.echoes[2].held_ns, (1u << 29) - 1) << "cut to what fits";
}

TEST(MultipathPacketTest, EveryFlippedBitIsCaught) {
  std::string chunk(50, 'x'), bytes;
  Packet data = DataPacket();
  data.length = 4096 + 50;
  Write(data, AsBytes(chunk), true, bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string torn = bytes;
    torn[bit / 8] = static_cast<char>(torn[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_FALSE(Parse(AsBytes(torn), true).ok()) << "bit " << bit;
  }
}

TEST(MultipathPacketTest, ErrorsSayWhatIsWrong) {
  std::string bytes;
  Packet data = DataPacket();
  data.offset = 6000;
  Write(data, {}, false, bytes);
  EXPECT_THAT(Parse(AsBytes(bytes), false).status().message(), HasSubstr("bytes 6000 to 6000 of"));
  EXPECT_THAT(Parse(AsBytes(bytes), true).status().message(), HasSubstr("no checksum"));
  EXPECT_THAT(Parse(AsBytes("WM"), false).status().message(), HasSubstr("2 bytes long"));
  bytes[3] = 9;
  EXPECT_THAT(Parse(AsBytes(bytes), false).status().message(), HasSubstr("type 9"));
  bytes.clear();
  Packet probe = DataPacket();
  probe.type = PacketType::kProbe;
  probe.floor = 2000;
  Write(probe, {}, false, bytes);
  EXPECT_THAT(Parse(AsBytes(bytes), false).status().message(), HasSubstr("floor 2000"));
}

// Bytes from nowhere, and real packets with some bytes changed, cut or added: never a crash, and
// what is accepted keeps its bounds.
TEST(MultipathPacketTest, ParserSurvivesFuzzing) {
  Random random(1);
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string bytes;
    if (round % 4 == 0) {
      bytes.resize(random.Below(700));
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (bytes.size() > 4) bytes.replace(0, 3, "WM\x01", 3);
    } else {
      Packet packet = round % 4 == 1 ? AckPacket() : DataPacket();
      packet.type = round % 4 == 3 ? static_cast<PacketType>(1 + random.Below(8)) : packet.type;
      packet.chunk = 1024;
      packet.paths = 4;
      packet.window = 64;
      Write(packet, {}, false, bytes);
      for (uint64_t i = random.Below(4); i > 0; --i) {
        bytes[random.Below(bytes.size())] = static_cast<char>(random());
      }
      if (random.Below(4) == 0) bytes.resize(random.Below(bytes.size() + 20));
    }
    auto parsed = Parse(AsBytes(bytes), false);
    if (!parsed.ok()) continue;
    ++accepted;
    ASSERT_LE(parsed->packet.echoes.size(), kEchoesMax);
    ASSERT_LE(parsed->packet.arrived.size(), kWordsMax);
    if (parsed->packet.type != PacketType::kData) continue;
    ASSERT_LE(parsed->packet.offset + parsed->chunk.size(), parsed->packet.length);
    ASSERT_LE(parsed->packet.length, kMessageBytesMax);
  }
  EXPECT_GT(accepted, 10'000);
}

}  // namespace
}  // namespace weft::net::multipath
