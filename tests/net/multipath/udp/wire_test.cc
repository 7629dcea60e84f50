// A wire between two ends in memory, with somebody on the way who sees every packet and can put in
// packets of his own, but keeps none back and changes none.
#include "net/multipath/udp/wire.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace weft::net::multipath {
namespace {

constexpr int kSender = 0, kReceiver = 1, kPaths = 2;
constexpr uint32_t kChunk = 1024;

struct Flying {
  int to = 0;
  std::string bytes;
};

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

class MemoryPaths final : public LinkPaths {
 public:
  MemoryPaths(std::deque<Flying>& flying, int peer, int64_t& malformed)
      : flying_(flying), peer_(peer), malformed_(malformed) {}
  absl::Status Describe(Address& own) override {
    own.link = 1;
    own.host = "memory:0";
    own.ports.assign(kPaths, 1);
    return absl::OkStatus();
  }
  absl::StatusOr<Facts> Connect(const Address& /*peer*/) override {
    return Facts{.paths = kPaths, .room = Bytes(64 << 10), .host_mtu = 0};
  }
  bool CanSend() override { return true; }
  void Queue(PathId /*path*/, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk) override {
    std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
    bytes.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    flying_.push_back({peer_, std::move(bytes)});
  }
  void Flush() override {}
  bool NoteMalformed() override { return malformed_++ == 0; }
  const absl::Status& status() const override { return status_; }
  std::string Suspicion() const override { return "is memory broken?"; }

 private:
  std::deque<Flying>& flying_;
  const int peer_;
  int64_t& malformed_;
  absl::Status status_;
};

void AddEach(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::byte>(static_cast<int>(local[i]) + static_cast<int>(incoming[i]));
  }
}

// One end: a link that sends what it is told to, and takes everything into one buffer.
class End final : private WireOwner {
 public:
  End(Poller& poller, std::deque<Flying>& flying, const WireOptions& options, int self)
      : wire_(
            poller,
            [&, self](DatagramOwner& owner) {
              datagrams_ = &owner;
              return std::make_unique<MemoryPaths>(flying, 1 - self, malformed);
            },
            options, self == kSender, *this) {}
  Wire& wire() { return wire_; }
  void Send(uint64_t receive, const std::string& text) {
    OutFrame frame;
    frame.header.type = FrameType::kData;
    frame.header.receive = receive;
    frame.header.length = frame.header.total = text.size();
    frame.payload = reinterpret_cast<const std::byte*>(text.data());
    frame.token = static_cast<uint32_t>(receive);
    wire_.SendData(frame);
  }
  void Deliver(const std::string& bytes, absl::Time now) {
    if (!IsSealed(AsBytes(bytes), datagrams_->key())) {
      ++unauthenticated;
      return;
    }
    datagrams_->OnDatagram(ReceivedOf(AsBytes(bytes), /*marked=*/false, now, now));
  }

  std::string buffer;    // of the message that comes
  bool reduces = false;  // adds to it, else is put there
  int arrived = 0, sent = 0;
  int64_t malformed = 0, unauthenticated = 0;
  absl::Status broken;

 private:
  absl::StatusOr<PayloadTarget> OnWireFrame(const FrameHeader& header) override {
    PayloadTarget target;
    if (header.total > buffer.size()) return absl::OutOfRangeError("too long");
    target.out = reinterpret_cast<std::byte*>(buffer.data());
    target.local = target.out;
    if (reduces) target.reduce = AddEach;
    return target;
  }
  absl::Status OnWireFrameDone(const FrameHeader& /*header*/, absl::string_view) override {
    ++arrived;
    return absl::OkStatus();
  }
  void OnWireSent(uint32_t) override { ++sent; }
  bool ExpectsData() const override { return false; }
  void OnWireRoom() override {}
  void OnWireWords(const std::string&) override {}
  void OnWireBroken(const absl::Status& why) override { broken = why; }

  DatagramOwner* datagrams_ = nullptr;
  Wire wire_;
};

// `reduces`: what arrives is added to what is there.
class WireTest : public testing::TestWithParam<bool> {
 protected:
  void Open(bool authenticates) {
    WireOptions options;
    options.chunk_max = kChunk;
    options.authenticates = authenticates;
    options.has_checksum = true;
    options.connect_timeout = absl::Seconds(10);
    options.clock = &clock_;
    options.secret.fill(1);
    SenderOptions& send = options.sender;
    send.overhead = 128;
    send.facts.base_rtt = absl::Microseconds(100);
    send.facts.bandwidth = Bandwidth::GigabitsPerSecond(10);
    send.weighs_paths = true;
    ends_ = {};
    poller_ = *Poller::Create();
    for (int i : {kSender, kReceiver}) {
      ends_[static_cast<size_t>(i)] = std::make_unique<End>(*poller_, flying_, options, i);
    }
    const std::string first = *sender().wire().OwnAddress(),
                      second = *receiver().wire().OwnAddress();
    ASSERT_TRUE(sender().wire().Connect(second).ok());
    ASSERT_TRUE(receiver().wire().Connect(first).ok());
    receiver().reduces = GetParam();
  }
  End& sender() { return *ends_[kSender]; }
  End& receiver() { return *ends_[kReceiver]; }

  // Sends one message. `attack` sees each packet before it arrives.
  void Exchange(uint64_t receive, const std::function<void(const Flying&)>& attack) {
    receiver().buffer.assign(text_.size(), GetParam() ? '\1' : '.');
    sender().Send(receive, text_);
    const int arrived = receiver().arrived, sent = sender().sent;
    for (int round = 0; round < 100'000; ++round) {
      poller_->Turn(clock_.Now());
      if (receiver().arrived > arrived && sender().sent > sent && flying_.empty()) return;
      clock_.Advance(absl::Microseconds(10));
      for (std::deque<Flying> now = std::exchange(flying_, {}); !now.empty(); now.pop_front()) {
        attack(now.front());
        Deliver(now.front());
      }
    }
    FAIL() << "no end: " << sender().broken << receiver().broken;
  }
  void Deliver(const Flying& one) {
    ends_[static_cast<size_t>(one.to)]->Deliver(one.bytes, clock_.Now());
  }
  std::string Expected(std::string text) const {
    for (char& byte : text) byte = static_cast<char>(byte + (GetParam() ? 1 : 0));
    return text;
  }
  static bool IsData(const Flying& one) {
    return one.to == kReceiver && AddressOf(AsBytes(one.bytes)).has_value();
  }
  // Another chunk under the same header, with the same checksum: the polynomial of CRC-32C, whose
  // multiples change no checksum, is added to its first bits.
  static Flying Forged(Flying one) {
    constexpr std::array<uint8_t, 5> kPolynomial = {0xF1, 0x76, 0xEC, 0x05, 0x01};
    for (size_t i = 0; i < kPolynomial.size(); ++i) {
      char& byte = one.bytes[kBeforeChunk + i];
      byte = static_cast<char>(byte ^ kPolynomial[i]);
    }
    return one;
  }

  ManualClock clock_{absl::FromUnixSeconds(1000)};
  std::unique_ptr<Poller> poller_;
  std::deque<Flying> flying_;
  std::array<std::unique_ptr<End>, 2> ends_;
  const std::string text_ = std::string(20 * kChunk, 'a') + std::string(700, 'b');
};

TEST_P(WireTest, AForgedChunkUnderAGenuineHeaderIsDroppedAndCounted) {
  Open(/*authenticates=*/true);
  int forged = 0;
  Exchange(1, [&](const Flying& one) {
    if (!IsData(one)) return;
    ++forged;
    Deliver(Forged(one));
  });
  EXPECT_GE(forged, 21);
  EXPECT_EQ(receiver().malformed, forged);
  EXPECT_EQ(receiver().unauthenticated + sender().unauthenticated, 0);
  EXPECT_EQ(receiver().buffer, Expected(text_));
  EXPECT_TRUE(receiver().broken.ok() && sender().broken.ok());
}

// The checksum finds damage, and nobody's purpose: this is what the setting is for.
TEST_P(WireTest, WithoutTagsAForgedChunkOfTheSameChecksumIsTaken) {
  Open(/*authenticates=*/false);
  int forged = 0;
  Exchange(1, [&](const Flying& one) {
    if (!IsData(one) || AddressOf(AsBytes(one.bytes))->offset != 0) return;
    ++forged;
    Flying damaged = one;
    damaged.bytes[kBeforeChunk + 9] ^= 1;
    Deliver(damaged);
    Deliver(Forged(one));
  });
  EXPECT_EQ(forged, 1);
  EXPECT_EQ(receiver().malformed, 1) << "the one that is only damaged";
  EXPECT_NE(receiver().buffer.substr(0, 5), Expected(text_).substr(0, 5));
  EXPECT_EQ(receiver().buffer.substr(5), Expected(text_).substr(5));
}

TEST_P(WireTest, APacketSentAgainByAnybodyChangesNothing) {
  for (bool authenticates : {false, true}) {
    Open(authenticates);
    std::vector<Flying> seen;
    auto again = [&](const Flying& one) {
      // Answers to what is repeated are repeated as well, but start nothing.
      for (size_t i = 0; IsData(one) && i < seen.size(); ++i) Deliver(seen[i]);
      seen.push_back(one);
    };
    for (uint64_t receive : {1, 2, 3}) {
      Exchange(receive, again);
      EXPECT_EQ(receiver().buffer, Expected(text_)) << receive;
    }
    EXPECT_EQ(receiver().arrived, 3);
    EXPECT_EQ(sender().sent, 3);
    EXPECT_EQ(receiver().malformed + receiver().unauthenticated + sender().unauthenticated, 0);
    EXPECT_TRUE(receiver().broken.ok() && sender().broken.ok());
    // Nor do they pass for a sign of life of a peer that is gone.
    const absl::Time heard[] = {sender().wire().heard_at(), receiver().wire().heard_at()};
    clock_.Advance(absl::Seconds(1));
    for (const Flying& old : seen) Deliver(old);
    EXPECT_EQ(sender().wire().heard_at(), heard[0]);
    EXPECT_EQ(receiver().wire().heard_at(), heard[1]);
    flying_.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Of, WireTest, testing::Bool(), [](const auto& info) {
  return info.param ? "ReducedMessages" : "StoredMessages";
});

}  // namespace
}  // namespace weft::net::multipath
