// Envelopes, keys and addresses: without a socket.
#include "net/multipath/udp/datagram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/fuzz_budget.h"

namespace weft::net::multipath {
namespace {

using testing::HasSubstr;

JobSecret SecretOf(uint8_t value) {
  JobSecret secret;
  secret.fill(value);
  return secret;
}
LinkNonce NonceOf(uint8_t value) {
  LinkNonce nonce;
  nonce.fill(value);
  return nonce;
}

std::string Datagram(PacketType type, absl::string_view chunk, const Key& key) {
  Packet packet;
  packet.type = type;
  packet.source = 1;
  packet.length = chunk.size();
  packet.chunk = 1024;
  packet.window = 64;
  packet.paths = 1;
  packet.number = 5;
  std::string bytes(kEnvelopeBytes, '\0');
  WriteHeader(packet, {}, false, bytes);
  Seal(absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()), 77, key);
  return bytes.append(chunk.data(), chunk.size());
}

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

Address GoodAddress() {
  Address address;
  address.link = 9;
  address.nonce = NonceOf(3);
  address.chunk_max = 1344;
  address.buffer_bytes = 1 << 20;
  address.has_checksum = false;
  address.trusts_host = true;
  address.host = "10.0.0.1:0";
  address.ports = {4000, 4001};
  return address;
}

TEST(DatagramTest, KeysDifferByDirectionSecretAndNonces) {
  std::set<Key> seen;
  auto add = [&](const Keys& keys) { seen.insert({keys.to_listener, keys.to_connector}); };
  add(MakeKeys(SecretOf(1), NonceOf(1), NonceOf(2)));
  add(MakeKeys(SecretOf(2), NonceOf(1), NonceOf(2)));
  add(MakeKeys(SecretOf(1), NonceOf(2), NonceOf(1)));
  add(MakeKeys(SecretOf(1), NonceOf(1), NonceOf(3)));
  EXPECT_EQ(seen.size(), 8U);
}

TEST(DatagramTest, EveryFlippedBitBeforeTheChunkBreaksTheSeal) {
  Keys keys = MakeKeys(SecretOf(1), NonceOf(1), NonceOf(2));
  for (PacketType type : {PacketType::kHello, PacketType::kData, PacketType::kProbe}) {
    std::string bytes = Datagram(type, "", keys.to_listener);
    uint32_t link = 0;
    ASSERT_TRUE(LinkOf(AsBytes(bytes), &link));
    EXPECT_EQ(link, 77U);
    ASSERT_TRUE(IsSealed(AsBytes(bytes), keys.to_listener));
    EXPECT_FALSE(IsSealed(AsBytes(bytes), keys.to_connector)) << "sent back to where it came from";
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      std::string torn = bytes;
      torn[bit / 8] = static_cast<char>(torn[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_FALSE(IsSealed(AsBytes(torn), keys.to_listener)) << "bit " << bit;
    }
  }
}

TEST(DatagramTest, TheSealNeedsNoLookAtTheChunk) {
  Keys keys = MakeKeys(SecretOf(1), NonceOf(1), NonceOf(2));
  std::string bytes = Datagram(PacketType::kData, std::string(1000, 'x'), keys.to_listener);
  ASSERT_EQ(bytes.size(), kBeforeChunk + 1000);
  EXPECT_TRUE(IsSealed(AsBytes(bytes), keys.to_listener));
  bytes.back() = 'y';  // the packet's own checksum is for this
  EXPECT_TRUE(IsSealed(AsBytes(bytes), keys.to_listener));
}

// One behind the other, as a message of a queue pair holds them.
std::string Joined(const std::vector<std::string>& packets) {
  std::string out;
  for (const std::string& packet : packets) {
    out.resize(AlignedPacket(out.size()));
    out += packet;
  }
  return out;
}

std::vector<size_t> SizesIn(const std::string& message) {
  std::vector<size_t> out;
  for (auto rest = AsBytes(message); !rest.empty();) out.push_back(TakePacket(&rest).size());
  return out;
}

TEST(DatagramTest, AMessageGivesBackThePacketsThatWereJoined) {
  Keys keys = MakeKeys(SecretOf(1), NonceOf(1), NonceOf(2));
  const std::string ack = Datagram(PacketType::kAck, "", keys.to_listener);
  const std::string probe = Datagram(PacketType::kProbe, "", keys.to_listener);
  const std::string data = Datagram(PacketType::kData, std::string(1000, 'x'), keys.to_listener);
  EXPECT_TRUE(MayBeFollowed(AsBytes(ack)));
  EXPECT_FALSE(MayBeFollowed(AsBytes(data)));
  for (const auto& packets : std::vector<std::vector<std::string>>{
           {ack}, {data}, {ack, data}, {probe, ack, data}, {ack, probe}}) {
    const std::string message = Joined(packets);
    auto rest = AsBytes(message);
    for (const std::string& packet : packets) {
      const auto first = TakePacket(&rest);
      EXPECT_EQ((first.data() - AsBytes(message).data()) % kPacketAlign, 0);
      EXPECT_EQ(first, AsBytes(packet));
      EXPECT_TRUE(IsSealed(first, keys.to_listener));
    }
    EXPECT_TRUE(rest.empty());
  }
}

TEST(DatagramTest, ACountOfBytesThatLiesIsNotBelieved) {
  Keys keys = MakeKeys(SecretOf(1), NonceOf(1), NonceOf(2));
  const std::string ack = Datagram(PacketType::kAck, "", keys.to_listener);
  std::string message = Joined({ack, ack});
  EXPECT_EQ(SizesIn(message), (std::vector<size_t>{ack.size(), ack.size()}));
  constexpr size_t kBytesAt = 12;
  for (uint32_t lie : {0u, 1u, 64u, static_cast<uint32_t>(message.size()), ~0u}) {
    std::memcpy(message.data() + kBytesAt, &lie, sizeof lie);
    auto rest = AsBytes(message);
    EXPECT_FALSE(IsSealed(TakePacket(&rest), keys.to_listener)) << lie;
  }
}

TEST(DatagramTest, AddressesComeBackAsTheyWereWritten) {
  auto back = Address::Decode(GoodAddress().Encode());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->link, 9U);
  EXPECT_EQ(back->nonce, NonceOf(3));
  EXPECT_EQ(back->chunk_max, 1344U);
  EXPECT_EQ(back->buffer_bytes, 1U << 20);
  EXPECT_FALSE(back->has_checksum);
  EXPECT_TRUE(back->trusts_host);
  EXPECT_FALSE(back->chunk_is_set);
  EXPECT_EQ(back->host, "10.0.0.1:0");
  EXPECT_EQ(back->ports, (std::vector<uint16_t>{4000, 4001}));
}

TEST(DatagramTest, AddressesThatMakeNoSenseAreRefused) {
  auto error = [](const std::function<void(Address&)>& spoil) {
    Address address = GoodAddress();
    spoil(address);
    return std::string(Address::Decode(address.Encode()).status().message());
  };
  EXPECT_THAT(error([](Address& a) { a.ports.clear(); }), HasSubstr("0 ports"));
  EXPECT_THAT(error([](Address& a) { a.ports[1] = 0; }), HasSubstr("port 0"));
  EXPECT_THAT(error([](Address& a) { a.chunk_max = 1345; }), HasSubstr("chunks of 1345"));
  EXPECT_THAT(error([](Address& a) { a.chunk_max = 1 << 20; }), HasSubstr("chunks of 1048576"));
  std::string good = GoodAddress().Encode();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(Address::Decode(good.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(Address::Decode(good + "x").ok());
}

// Whatever comes: no crash, and what is accepted keeps its bounds.
TEST(DatagramTest, ReadersSurviveFuzzing) {
  Keys keys = MakeKeys(SecretOf(1), NonceOf(1), NonceOf(2));
  FuzzBudget budget(50'000);
  while (auto seed = budget.Next()) {
    Random random(*seed);
    std::string bytes =
        random.Below(2) == 0
            ? GoodAddress().Encode()
            : Datagram(static_cast<PacketType>(1 + random.Below(8)), "abc", keys.to_listener);
    for (uint64_t i = random.Below(4); i > 0; --i) {
      bytes[random.Below(bytes.size())] = static_cast<char>(random());
    }
    if (random.Below(3) == 0) bytes.resize(random.Below(bytes.size() + 20));
    uint32_t link = 0;
    if (LinkOf(AsBytes(bytes), &link) && IsSealed(AsBytes(bytes), keys.to_listener)) {
      (void)Parse(AsBytes(bytes).subspan(kEnvelopeBytes), false);
    }
    const std::string message = Joined({bytes, bytes});
    size_t taken = 0;
    for (size_t size : SizesIn(message)) taken += AlignedPacket(size);
    ASSERT_GE(taken, message.size()) << budget.Repeat();
    ASSERT_LT(taken, message.size() + kPacketAlign) << budget.Repeat();
    auto address = Address::Decode(bytes);
    if (!address.ok()) continue;
    ASSERT_LE(address->ports.size(), kPathsMax) << budget.Repeat();
    ASSERT_LE(address->chunk_max, kChunkMax) << budget.Repeat();
    ASSERT_LE(address->host.size(), kAddressHostBytesMax) << budget.Repeat();
  }
  budget.Report();
}

}  // namespace
}  // namespace weft::net::multipath
