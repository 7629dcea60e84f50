#include "net/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "net/tcp/connector.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

HandshakeIdentity Identity(int rank, int world_size = 4, uint8_t secret = 7) {
  HandshakeIdentity out{Rank(rank), world_size, {}, HandshakePurpose::kTcpLink};
  out.secret.fill(secret);
  return out;
}
Nonce FixedNonce(uint8_t value) {
  Nonce out;
  out.fill(value);
  return out;
}
std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Both sides, and the wire between them, on which a test may lay hands.
struct Talk {
  Talk(const HandshakeIdentity& l, const HandshakeIdentity& c, int target = 1)
      : listener(l, FixedNonce(1)), connector(c, Rank(target), "parameters", FixedNonce(2)) {}

  // One message each way until nothing moves. `meddle(index, bytes)`: 0 Challenge, 1 Hello, 2
  // Verdict.
  void Run(const std::function<void(int, std::string*)>& meddle = {}) {
    for (int index = 0; index < 3; ++index) {
      std::string bytes = index == 1 ? connector.TakeOutput() : listener.TakeOutput();
      if (meddle) meddle(index, &bytes);
      messages[index] = bytes;
      if (index == 1) {
        listener.Feed(bytes);
        if (listener.state() == HandshakeState::kHello) decide(listener);
      } else {
        connector.Feed(bytes);
      }
    }
  }
  ListenerHandshake listener;
  ConnectorHandshake connector;
  std::function<void(ListenerHandshake&)> decide = [](ListenerHandshake& l) { l.Accept("answer"); };
  std::string messages[3];
};

TEST(Handshake, BothSidesLearnWhoTheOtherIs) {
  Talk talk(Identity(1), Identity(3));
  talk.Run();
  ASSERT_EQ(talk.listener.state(), HandshakeState::kDone) << talk.listener.status();
  ASSERT_EQ(talk.connector.state(), HandshakeState::kDone) << talk.connector.status();
  EXPECT_EQ(talk.listener.hello().rank, Rank(3));
  EXPECT_EQ(talk.listener.hello().parameters, "parameters");
  EXPECT_EQ(talk.connector.peer(), Rank(1));
  EXPECT_EQ(talk.connector.parameters(), "answer");
  for (const std::string& message : talk.messages) EXPECT_LE(message.size(), kHandshakeBytesMax);
}

TEST(Handshake, WorksAByteAtATimeAndLeavesWhatFollows) {
  Talk talk(Identity(1), Identity(3));
  for (char c : talk.listener.TakeOutput()) ASSERT_EQ(talk.connector.Feed({&c, 1}), 1u);
  for (char c : talk.connector.TakeOutput()) ASSERT_EQ(talk.listener.Feed({&c, 1}), 1u);
  ASSERT_EQ(talk.listener.state(), HandshakeState::kHello);
  talk.listener.Accept("");
  std::string verdict = talk.listener.TakeOutput();
  EXPECT_EQ(talk.connector.Feed(verdict + "first frame"), verdict.size());
  EXPECT_EQ(talk.connector.state(), HandshakeState::kDone);
}

TEST(Handshake, ATruncatedMessageNeverCompletes) {
  Talk whole(Identity(1), Identity(3));
  whole.Run();
  for (int index = 0; index < 3; ++index) {
    for (size_t cut = 0; cut < whole.messages[index].size(); ++cut) {
      Talk talk(Identity(1), Identity(3));
      talk.Run([&](int i, std::string* bytes) {
        if (i == index) bytes->resize(cut);
      });
      EXPECT_EQ(talk.connector.state(), HandshakeState::kRunning) << index << " at " << cut;
      EXPECT_EQ(talk.listener.state(),
                index == 2 ? HandshakeState::kDone : HandshakeState::kRunning);
    }
  }
}

struct Refusal {
  const char* name;
  HandshakeIdentity listener, connector;
  int target;
  HandshakeReason reason;
  std::vector<std::string> words;  // both sides' values
};

TEST(Handshake, EachMismatchHasItsReasonAndNamesBothValues) {
  HandshakeIdentity store = Identity(1);
  store.purpose = HandshakePurpose::kStore;
  const Refusal refusals[] = {
      {"secret", Identity(1), Identity(3, 4, 8), 1, HandshakeReason::kWrongSecret, {"secret"}},
      {"world", Identity(1, 4), Identity(3, 16), 1, HandshakeReason::kWrongWorldSize, {"4", "16"}},
      {"rank", Identity(1), Identity(77), 1, HandshakeReason::kWrongRank, {"77", "[0, 4)"}},
      {"negative", Identity(1), Identity(-5), 1, HandshakeReason::kWrongRank, {"-5"}},
      {"target", Identity(1), Identity(3), 2, HandshakeReason::kWrongTarget, {"rank 2", "rank 1"}},
      {"purpose", store, Identity(3), 1, HandshakeReason::kWrongPurpose, {"tcp link", "store"}},
  };
  for (const Refusal& refusal : refusals) {
    Talk talk(refusal.listener, refusal.connector, refusal.target);
    talk.Run();
    EXPECT_EQ(talk.listener.state(), HandshakeState::kFailed) << refusal.name;
    EXPECT_EQ(talk.connector.state(), HandshakeState::kFailed) << refusal.name;
    EXPECT_EQ(talk.listener.reason(), refusal.reason) << refusal.name;
    EXPECT_EQ(talk.connector.reason(), refusal.reason) << refusal.name;
    EXPECT_EQ(talk.listener.status().code(), CodeOf(refusal.reason));
    EXPECT_EQ(talk.connector.status().code(), CodeOf(refusal.reason));
    for (const std::string& word : refusal.words) {
      EXPECT_THAT(Message(talk.listener.status()), HasSubstr(word)) << refusal.name;
      EXPECT_THAT(Message(talk.connector.status()), HasSubstr(word)) << refusal.name;
    }
  }
}

TEST(Handshake, AListenerWithoutAWorldAdmitsAnyRank) {
  HandshakeIdentity store = Identity(-1, 0), client = Identity(-1, 0);
  store.purpose = client.purpose = HandshakePurpose::kStore;
  Talk talk(store, client, -1);
  talk.Run();
  EXPECT_EQ(talk.connector.state(), HandshakeState::kDone) << talk.connector.status();
}

TEST(Handshake, TheOwnersRefusalReachesTheConnector) {
  Talk talk(Identity(1), Identity(3));
  talk.decide = [](ListenerHandshake& l) { l.Refuse("no room: " + std::string(2000, 'x')); };
  talk.Run();
  EXPECT_EQ(talk.connector.reason(), HandshakeReason::kRefused);
  EXPECT_THAT(Message(talk.connector.status()), HasSubstr("no room"));
  EXPECT_LE(talk.messages[2].size(), kHandshakeBytesMax);
}

TEST(Handshake, AnotherVersionIsNamedOnBothSides) {
  for (int index : {0, 1}) {
    Talk talk(Identity(1), Identity(3));
    talk.Run([&](int i, std::string* bytes) {
      if (i == index && bytes->size() > 4) (*bytes)[4] = 9;
    });
    auto expect = [](auto& side) {
      EXPECT_EQ(side.reason(), HandshakeReason::kWrongVersion) << side.status();
      EXPECT_THAT(Message(side.status()), HasSubstr("speaks 9"));
      EXPECT_THAT(Message(side.status()), HasSubstr(absl::StrCat("one ", kWireVersion)));
    };
    if (index == 0) {
      expect(talk.connector);
      // It tells its own version, so that the listener's log can say more than "closed".
      EXPECT_EQ(talk.messages[1].substr(0, 4), "WEFT");
    } else {
      expect(talk.listener);
    }
  }
}

TEST(Handshake, GarbageIsRecognisedAtItsFirstByte) {
  for (const char* garbage : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "SSH-2.0-x\r\n", "\n"}) {
    ListenerHandshake listener(Identity(1), FixedNonce(1));
    listener.Feed(garbage);
    EXPECT_EQ(listener.reason(), HandshakeReason::kWrongMagic) << garbage;
    ConnectorHandshake connector(Identity(3), Rank(1), "", FixedNonce(2));
    connector.Feed(garbage);
    EXPECT_EQ(connector.reason(), HandshakeReason::kWrongMagic) << garbage;
  }
}

TEST(Handshake, ALengthBeyondTheBoundIsRefusedBeforeAnythingIsKept) {
  for (uint32_t length : {1013u, 65536u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    std::string prefix("WEFT");
    prefix += {static_cast<char>(kWireVersion), 0, 2, 0};
    prefix.append(reinterpret_cast<const char*>(&length), 4);
    ListenerHandshake listener(Identity(1), FixedNonce(1));
    EXPECT_LE(listener.Feed(prefix + std::string(100000, 'x')), kHandshakeBytesMax);
    EXPECT_EQ(listener.reason(), HandshakeReason::kMalformed) << length;
  }
}

TEST(Handshake, ARecordedHelloIsWorthlessAgainstAFreshNonce) {
  Talk talk(Identity(1), Identity(3));
  talk.Run();
  ASSERT_EQ(talk.listener.state(), HandshakeState::kDone);
  ListenerHandshake again(Identity(1), NewNonce());
  again.Feed(talk.messages[1]);
  EXPECT_EQ(again.reason(), HandshakeReason::kWrongSecret);
  ConnectorHandshake next(Identity(3), Rank(1), "parameters", NewNonce());
  next.Feed(talk.messages[0]);
  next.Feed(talk.messages[2]);  // a recorded verdict
  EXPECT_EQ(next.reason(), HandshakeReason::kWrongSecret);
}

// What a listener says to whoever has not proved itself does not depend on its secret: otherwise
// one refused connection would do to try secrets against.
TEST(Handshake, AnUnauthenticatedPeerLearnsNothingThatDependsOnTheSecret) {
  Talk impostor(Identity(1), Identity(3, 4, 9));
  impostor.Run();
  const std::string hello = impostor.messages[1];
  std::string lengths = hello;
  lengths[12 + 32 + 16] ^= 1;
  std::string version = hello;
  version[4] ^= 1;
  for (const std::string& words : {hello, lengths, version, hello + hello, std::string("GET /")}) {
    std::string said[2];
    for (uint8_t secret : {7, 8}) {
      ListenerHandshake listener(Identity(1, 4, secret), FixedNonce(1));
      std::string& all = said[secret - 7];
      all = listener.TakeOutput();
      listener.Feed(words);
      ASSERT_EQ(listener.state(), HandshakeState::kFailed);
      EXPECT_FALSE(listener.proven());
      all += listener.TakeOutput();
      EXPECT_EQ(all.substr(all.size() - 32), std::string(32, '\0'));
    }
    EXPECT_EQ(said[0], said[1]);
  }
}

// A MAC of zeros is no proof, whatever the verdict.
TEST(Handshake, AVerdictWithoutAProofIsNotBelieved) {
  for (bool refused : {false, true}) {
    Talk talk(Identity(1), Identity(3));
    if (refused) talk.decide = [](ListenerHandshake& l) { l.Refuse("no room"); };
    talk.Run([](int i, std::string* bytes) {
      if (i == 2) bytes->replace(bytes->size() - 32, 32, std::string(32, '\0'));
    });
    EXPECT_EQ(talk.connector.reason(), HandshakeReason::kWrongSecret);
  }
}

// A change of these bytes needs a higher kWireVersion, by which processes of two builds see that
// they cannot talk to each other.
TEST(Handshake, ATcpLinksHelloHasTheBytesOfItsVersion) {
  ASSERT_EQ(kWireVersion, 7);
  const LinkParameters parameters = {.link_id = 0x0807060504030201,
                                     .index = 2,
                                     .count = 3,
                                     .epoch = 4,
                                     .life_port = 0x0605,
                                     .rate = 0x0E0D0C0B0A090807};
  const std::string link = parameters.Encode();
  EXPECT_EQ(absl::BytesToHexString(link),
            "0102030405060708020003000400000005060000"
            "0708090a0b0c0d0e");
  ListenerHandshake listener(Identity(1), FixedNonce(1));
  ConnectorHandshake connector(Identity(3), Rank(1), link, FixedNonce(2));
  connector.Feed(listener.TakeOutput());
  EXPECT_EQ(absl::BytesToHexString(connector.TakeOutput()),
            "57454654070002006e000000"
            "0202020202020202020202020202020202020202020202020202020202020202"
            "030000000400000001000000010000001c00"
            "01020304050607080200030004000000050600000708090a0b0c0d0e"
            "e6715978c900f7f9753c38a05ac79dbbb8c35d98ff7b3b055a04807a79690ab1");
}

TEST(Handshake, NoncesDiffer) { EXPECT_NE(NewNonce(), NewNonce()); }

// Whatever bits change, and however the bytes are cut, nobody believes a message that was not sent.
TEST(Handshake, FuzzedMessagesAreNeverBelieved) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    int victim = static_cast<int>(random.Below(3));
    bool changed = false;
    Talk talk(Identity(1), Identity(3));
    talk.Run([&](int i, std::string* bytes) {
      if (i != victim || bytes->empty()) return;
      std::string before = *bytes;
      for (uint64_t n = 1 + random.Below(4); n > 0; --n) {
        size_t at = random.Below(bytes->size());
        switch (random.Below(4)) {
          case 0:
            (*bytes)[at] ^= static_cast<char>(1 << random.Below(8));
            break;
          case 1:
            (*bytes)[at] = static_cast<char>(random());
            break;
          case 2:
            bytes->insert(at, std::string(random.Below(30), static_cast<char>(random())));
            break;
          default:
            bytes->erase(at, random.Below(30));
            if (bytes->empty()) *bytes = "W";
        }
      }
      // Bytes behind a whole message are none of the handshake's.
      changed = bytes->compare(0, before.size(), before) != 0;
    });
    if (!changed) continue;
    ASSERT_NE(talk.connector.state(), HandshakeState::kDone) << "seed " << seed;
    if (victim < 2) {
      ASSERT_NE(talk.listener.state(), HandshakeState::kDone) << "seed " << seed;
    }
  }
}

TEST(Handshake, RandomBytesInRandomPiecesDoNoHarm) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Random random(seed);
    ListenerHandshake listener(Identity(1), FixedNonce(1));
    ConnectorHandshake connector(Identity(3), Rank(1), "", FixedNonce(2));
    std::string bytes = "WEFT";
    bytes += static_cast<char>(1);
    bytes += '\0';
    while (bytes.size() < 1500) bytes += static_cast<char>(random.Below(random.Below(2) ? 4 : 256));
    for (size_t at = 0; at < bytes.size();) {
      size_t piece = std::min(bytes.size() - at, random.Below(200) + 1);
      listener.Feed({bytes.data() + at, piece});
      connector.Feed({bytes.data() + at, piece});
      at += piece;
    }
    EXPECT_NE(listener.state(), HandshakeState::kHello);
    EXPECT_NE(connector.state(), HandshakeState::kDone);
  }
}

}  // namespace
}  // namespace weft::net
