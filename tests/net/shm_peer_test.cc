// Peers that lie: what they write into the shared segment by hand.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "net/eager.h"
#include "net/shm/bringup.h"
#include "net/shm/cells.h"
#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

using shm::AnswerCell;
using shm::Arriving;
using shm::Cell;
using shm::ClearToSendCell;
using shm::Connecting;
using shm::DataCell;
using shm::Doorbell;
using shm::EagerCell;
using shm::Geometry;
using shm::NoticeCell;
using shm::OfferCell;
using shm::RefuseCell;
using shm::Wire;

constexpr Geometry kGeometry{16, 16, 4096, 16384};

// A connector that speaks the handshake and then writes the segment by hand.
struct ScriptedSender {
  explicit ScriptedSender(ShmNode* node) : bell(*Doorbell::Create()) {
    Connecting connecting(node->transport->address(), IdentityOf(*node, 5), node->options.self,
                          kGeometry, &bell, absl::InfiniteFuture());
    EXPECT_TRUE(PumpUntil({node}, [&] {
      auto got = connecting.Step(Now());
      EXPECT_TRUE(got.ok()) << got.status();
      if (got.ok() && got->has_value()) wire = **std::move(got);
      return wire.has_value() || !got.ok();
    }));
  }
  template <typename Body>
  void Write(const Body& body) {
    static_assert(sizeof(Body) <= shm::kCellBodyBytes);
    Cell& cell = wire->segment.forward_cells()[next % kGeometry.forward_cells];
    std::memcpy(cell.body, &body, sizeof body);
    cell.sequence.store(++next, std::memory_order_release);
  }
  // A message of `bytes` times 0x5A, which lies in the arena.
  void WriteWhole(uint64_t receive_id, uint32_t bytes) {
    DataCell piece;
    piece.receive_id = receive_id, piece.total = piece.length = bytes;
    piece.position = 0;
    std::memset(wire->segment.arena(), 0x5A, bytes);
    Write(piece);
  }
  ClearToSendCell Clear(size_t index) {
    ClearToSendCell cell;
    std::memcpy(&cell, wire->segment.backward_cells()[index].body, sizeof cell);
    return cell;
  }
  // Memory of `bytes`, said to have `said`.
  void Show(uint32_t share, uint64_t bytes, uint64_t said = 0) {
    struct {
      uint32_t magic = 0x52485357, share;
      uint64_t bytes;
    } packet;
    packet.share = share, packet.bytes = said > 0 ? said : bytes;
    auto memory = shm::CreateSealedMemory("weft-test", bytes);
    ASSERT_TRUE(memory.ok());
    const int fd = memory->get();
    EXPECT_TRUE(
        shm::SendPacket(wire->socket.get(), {reinterpret_cast<char*>(&packet), 16}, {&fd, 1}).ok());
  }
  Doorbell bell;
  std::optional<Wire> wire;
  uint64_t next = 0;
};

// ---- Coming up

TEST(ShmBringUp, ConnectorIsDueWhenItsSocketHasSomethingOrItsTimeHasCome) {
  ShmNode node(1);
  std::string address;
  const FileDescriptor listener = *shm::ListenUnix(&address);
  const Doorbell bell = *Doorbell::Create();
  const absl::Time now = Now(), give_up = now + absl::Hours(1);
  Connecting connecting(address, IdentityOf(node, 5), Rank(1), kGeometry, &bell, give_up);
  EXPECT_TRUE(connecting.IsDue(now));  // to dial
  const auto step = connecting.Step(now);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_FALSE(step->has_value());  // nobody accepts
  EXPECT_FALSE(connecting.IsDue(now + absl::Minutes(59)));
  EXPECT_TRUE(connecting.IsDue(give_up));
  connecting.NoteReadable();
  EXPECT_TRUE(connecting.IsDue(now));
}

TEST(ShmBringUp, AcceptorIsDueWhenItsSocketHasSomethingOrItsTimeHasCome) {
  ShmNode node(1);
  std::string address;
  const FileDescriptor listener = *shm::ListenUnix(&address);
  auto dialed = shm::ConnectUnix(address);
  ASSERT_TRUE(dialed.ok()) << dialed.status();
  FileDescriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  ASSERT_GE(socket.get(), 0);
  const Doorbell bell = *Doorbell::Create();
  const absl::Time now = Now(), give_up = now + absl::Hours(1);
  Arriving arriving(std::move(socket), IdentityOf(node, 1), 10, &bell, give_up);
  EXPECT_TRUE(arriving.IsDue(now));  // to challenge
  const auto step = arriving.Step(now);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_FALSE(step->has_value());  // the other side says nothing
  EXPECT_FALSE(arriving.IsDue(now + absl::Minutes(59)));
  EXPECT_TRUE(arriving.IsDue(give_up));
  arriving.OnWatched();
  EXPECT_TRUE(arriving.IsDue(now));
}

// Descriptors on their way, in sockets that nobody reads.
class OnTheirWay {
 public:
  OnTheirWay() {
    for (auto& [from, to] : pairs_) {
      std::array<int, 2> ends{-1, -1};
      is_made_ &= socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, ends.data()) == 0;
      from = FileDescriptor(ends[0]), to = FileDescriptor(ends[1]);
    }
  }
  bool is_made() const { return is_made_; }
  // Until no more are taken. True: by their number, for the last socket is empty, and takes none.
  // One, and then four at a time: as many as that are above a bound which is a multiple of four,
  // also when a hello's three are among them.
  absl::StatusOr<bool> Fill(int fd) {
    const std::array<int, 4> fds{fd, fd, fd, fd};
    size_t count = 1;
    bool is_bounded = false;
    for (auto& [from, to] : pairs_) {
      is_bounded = true;
      for (bool is_sent = true; is_sent; count = fds.size()) {
        const auto sent = shm::SendPacket(from.get(), "x", {fds.data(), count});
        if (!sent.ok()) return sent.status();
        is_sent = *sent;
        is_bounded &= !is_sent;
      }
    }
    return is_bounded;
  }
  void Drop() {
    for (auto& [from, to] : pairs_) {
      while (true) {
        const auto packet = shm::ReceivePacket(to.get(), 16, /*takes_fds=*/false);
        if (!packet.ok() || packet->none) break;
      }
    }
  }

 private:
  std::array<std::pair<FileDescriptor, FileDescriptor>, 4> pairs_;
  bool is_made_ = true;
};

constexpr int kNoSuchBound = 77;

// In a process of its own, whose user has nothing else on its way. 0: well.
int ComeUpWhileTooManyAreOnTheirWay() {
  if (geteuid() == 0 && setuid(65534) != 0) return kNoSuchBound;  // root goes beyond it
  ShmNode node(1);
  std::string address;
  const FileDescriptor listener = *shm::ListenUnix(&address);
  const Doorbell bell = *Doorbell::Create();
  OnTheirWay others;
  const rlimit bound{64, 64};
  if (!others.is_made() || setrlimit(RLIMIT_NOFILE, &bound) != 0) return 1;
  const absl::Time now = Now(), give_up = now + absl::Hours(1);
  Connecting connecting(address, IdentityOf(node, 5), Rank(1), kGeometry, &bell, give_up);
  const auto waits = [](const auto& step) { return step.ok() && !step->has_value(); };
  if (!waits(connecting.Step(now))) return 2;  // dials
  Arriving arriving(shm::AcceptUnix(listener.get()), IdentityOf(node, 1), 10, &bell, give_up);
  if (!waits(arriving.Step(now))) return 3;  // challenges
  const auto filled = others.Fill(bell.event_fd());
  if (!filled.ok()) return 4;
  if (!*filled) return kNoSuchBound;
  connecting.NoteReadable();
  if (!waits(connecting.Step(now))) return 5;  // has to say hello
  if (connecting.deadline() == give_up) return 6;
  others.Drop();
  if (!waits(connecting.Step(connecting.deadline()))) return 7;  // waits for the verdict
  if (connecting.deadline() != give_up) return 8;
  if (!others.Fill(bell.event_fd()).ok()) return 9;
  arriving.OnWatched();
  if (!waits(arriving.Step(now))) return 10;  // has to say its verdict
  if (arriving.deadline() == give_up) return 11;
  others.Drop();
  const auto accepted = arriving.Step(arriving.deadline());
  if (!accepted.ok() || !accepted->has_value()) return 12;
  connecting.NoteReadable();
  const auto connected = connecting.Step(now);
  return connected.ok() && connected->has_value() ? 0 : 13;
}

TEST(ShmBringUp, WaitsWhileTooManyDescriptorsAreOnTheirWay) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kAlarmSeconds);
    _exit(ComeUpWhileTooManyAreOnTheirWay());
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoSuchBound) GTEST_SKIP() << "nothing bounds them here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// ---- Nonsense in the segment

struct Nonsense {
  const char* name;
  std::function<void(ScriptedSender*, DataCell)> write;  // the cell is a good first piece
};

// A good one of 64 bytes for a receive of tag 2.
EagerCell Eager(uint64_t number) {
  EagerCell cell;
  cell.number = number, cell.length = 64, cell.tag = 2, cell.is_inline = 1;
  return cell;
}
OfferCell Offer(uint64_t receive_id, uint64_t total) {
  OfferCell cell;
  cell.receive_id = receive_id, cell.total = total;
  return cell;
}

// A good piece: 4096 bytes of a message of 8192, for a receive of 8192 + 64.
const std::vector<Nonsense> kNonsense = {
    {"unknown kind", [](auto* s, DataCell c) { c.kind = 77, s->Write(c); }},
    {"kind of the other direction", [](auto* s, DataCell c) { c.kind = 4, s->Write(c); }},
    {"receive out of range", [](auto* s, DataCell c) { c.receive_id |= 0xffffff, s->Write(c); }},
    {"receive of before", [](auto* s, DataCell c) { c.receive_id -= 1ull << 32, s->Write(c); }},
    {"starts in the middle", [](auto* s, DataCell c) { c.offset = 64, s->Write(c); }},
    {"offset that wraps", [](auto* s, DataCell c) { c.offset = ~0ull - 63, s->Write(c); }},
    {"longer than the receive", [](auto* s, DataCell c) { c.total = 8192 + 65, s->Write(c); }},
    {"total of all ones", [](auto* s, DataCell c) { c.total = ~0ull, s->Write(c); }},
    {"piece longer than its message", [](auto* s, DataCell c) { c.total = 4032, s->Write(c); }},
    {"length of all ones", [](auto* s, DataCell c) { c.length = ~0u, s->Write(c); }},
    {"empty piece", [](auto* s, DataCell c) { c.length = 0, s->Write(c); }},
    {"ragged piece in the middle", [](auto* s, DataCell c) { c.length = 4095, s->Write(c); }},
    {"too long inside of a cell", [](auto* s, DataCell c) { c.is_inline = 1, s->Write(c); }},
    {"behind the arena", [](auto* s, DataCell c) { c.position = 16384 - 4032, s->Write(c); }},
    {"far behind the arena", [](auto* s, DataCell c) { c.position = ~0ull - 63, s->Write(c); }},
    {"unaligned", [](auto* s, DataCell c) { c.position = 1, s->Write(c); }},
    {"same piece twice", [](auto* s, DataCell c) { s->Write(c), s->Write(c); }},
    {"another total later",
     [](auto* s, DataCell c) {
       s->Write(c);
       c.offset = 4096, c.total = 8256, s->Write(c);
     }},
    {"message that is over",
     [](auto* s, DataCell c) {
       s->Write(c);
       c.offset = 4096, s->Write(c);
       s->Write(c);
     }},
    {"refusal of a receive that is not",
     [](auto* s, DataCell) {
       RefuseCell r;
       r.receive_id = 9, r.reason = 1, s->Write(r);
     }},
    {"refusal without a reason",
     [](auto* s, DataCell c) {
       RefuseCell r;
       r.receive_id = c.receive_id, r.reason = 99, s->Write(r);
     }},
    {"refusal in the middle",
     [](auto* s, DataCell c) {
       s->Write(c);
       RefuseCell r;
       r.receive_id = c.receive_id, r.reason = 1, s->Write(r);
     }},
    {"offer for a receive that is not",
     [](auto* s, DataCell c) { s->Write(Offer(c.receive_id - 7, 8192)); }},
    {"offer longer than the receive",
     [](auto* s, DataCell c) { s->Write(Offer(c.receive_id, 8257)); }},
    {"eager message longer than its cell",
     [](auto* s, DataCell) {
       EagerCell e = Eager(0);
       e.length = EagerCell::kInlineMax + 1, s->Write(e);
     }},
    {"eager message that is too long",
     [](auto* s, DataCell) {
       EagerCell e = Eager(0);
       e.length = shm::kEagerBytesMax + 1, e.is_inline = 0, e.position = 0, s->Write(e);
     }},
    {"eager message behind the arena",
     [](auto* s, DataCell) {
       EagerCell e = Eager(0);
       e.is_inline = 0, e.position = 16384, s->Write(e);
     }},
    {"eager message far behind the arena",
     [](auto* s, DataCell) {
       EagerCell e = Eager(0);
       e.is_inline = 0, e.position = ~0ull - 63, s->Write(e);
     }},
    {"eager message that is not aligned",
     [](auto* s, DataCell) {
       EagerCell e = Eager(0);
       e.is_inline = 0, e.position = 8, s->Write(e);
     }},
    {"eager message out of turn", [](auto* s, DataCell) { s->Write(Eager(1)); }},
    {"offer of nothing", [](auto* s, DataCell c) { s->Write(Offer(c.receive_id, 0)); }},
    {"offer from memory that is too short",
     [](auto* s, DataCell c) {
       s->Show(1, 4096);
       OfferCell o = Offer(c.receive_id, 4097);
       o.share = 1, s->Write(o);
     }},
    {"offer from behind memory",
     [](auto* s, DataCell c) {
       s->Show(1, 4096);
       OfferCell o = Offer(c.receive_id, 64);
       o.share = 1, o.address = ~0ull - 63, s->Write(o);
     }},
    {"memory that has another size", [](auto* s, DataCell) { s->Show(1, 8192, 4096); }},
    {"offer in the middle",
     [](auto* s, DataCell c) {
       s->Write(c);
       s->Write(Offer(c.receive_id, 8192));
     }},
    {"piece of what was offered",
     [](auto* s, DataCell c) {
       s->Write(Offer(c.receive_id, 8192));
       s->Write(c);
     }},
    {"notice too long",
     [](auto* s, DataCell) {
       s->Write(NoticeCell{3, 10, 0, 513});
     }},
    {"notice's fragment too long",
     [](auto* s, DataCell) {
       s->Write(NoticeCell{3, 255, 0, 300});
     }},
    {"notice from the middle",
     [](auto* s, DataCell) {
       s->Write(NoticeCell{3, 10, 10, 30});
     }},
    {"notice over its end",
     [](auto* s, DataCell) {
       s->Write(NoticeCell{3, 31, 0, 30});
     }},
    {"empty fragment",
     [](auto* s, DataCell) {
       s->Write(NoticeCell{3, 0, 0, 30});
     }},
    {"cell of the next round",
     [](auto* s, DataCell) { s->wire->segment.forward_cells()[1].sequence = 18; }},
    {"consumed more than there was",
     [](auto* s, DataCell) {
       // Seen when the receiver runs out of cells, which the next clear-to-sends make it do.
       s->wire->segment.backward_reader()->consumed = 1000;
     }},
    {"bytes on the socket",
     [](auto* s, DataCell) { send(s->wire->socket.get(), "hello", 5, MSG_NOSIGNAL); }},
};

class ShmNonsense : public testing::TestWithParam<size_t> {};

TEST_P(ShmNonsense, BreaksTheLinkWithItsNameAndNothingElse) {
  const Nonsense& nonsense = kNonsense[GetParam()];
  SCOPED_TRACE(nonsense.name);
  ShmNode node(1);
  node.Open();
  ScriptedSender peer(&node);
  ASSERT_EQ(node.accepted.size(), 1u);
  ReceiveLink& link = *node.accepted[0];
  // Guarded by a pattern on both sides: nothing may be written beside the receive.
  std::vector<std::byte> memory(3 * 8256, std::byte{0xAB}), unused(64);
  Request first, receive;
  RegionView out = View(*node.transport, memory).Slice(8256, 8256);
  // One receive comes and goes, so that there is a generation of before.
  ASSERT_EQ(link.PostReceive({1, 0}, {View(*node.transport, unused)}, &first), Posted::kAccepted);
  DataCell empty;
  empty.receive_id = peer.Clear(0).receive_id, empty.is_inline = 1;
  peer.Write(empty);
  ASSERT_TRUE(PumpUntil({&node}, [&] { return first.done(); }));
  ASSERT_EQ(link.PostReceive({1, 0}, {out}, &receive), Posted::kAccepted);
  DataCell good;
  good.receive_id = peer.Clear(1).receive_id;
  good.length = 4096, good.total = 8192, good.position = 0;
  nonsense.write(&peer, good);
  std::vector<Request> more(40);
  for (Request& request : more) {
    ASSERT_EQ(link.PostReceive({2, 0}, {View(*node.transport, unused)}, &request),
              Posted::kAccepted);
  }
  ASSERT_TRUE(PumpUntil({&node}, [&] { return !link.status().ok(); }));
  EXPECT_EQ(link.status().code(), absl::StatusCode::kDataLoss) << link.status();
  EXPECT_NE(link.status().message().find("rank 5"), std::string::npos) << link.status();
  ASSERT_EQ(node.broken.size(), 1u);
  EXPECT_EQ(node.broken[0], link.status());
  EXPECT_TRUE(receive.done());
  for (const Request& request : more) EXPECT_EQ(request.status(), link.status());
  for (size_t i = 0; i < 8256; ++i) {
    ASSERT_EQ(memory[i], std::byte{0xAB});
    ASSERT_EQ(memory[2 * 8256 + i], std::byte{0xAB});
  }
}

INSTANTIATE_TEST_SUITE_P(Cells, ShmNonsense, testing::Range(size_t{0}, kNonsense.size()));

TEST(ShmOffers, WhatCannotBeReadIsSentInPieces) {
  Request receive;
  ShmNode node(1, 64, {{"shm.single_copy", "on"}, {"shm.single_copy_min", "4096"}});
  node.Open();
  ScriptedSender peer(&node);
  ASSERT_EQ(node.accepted.size(), 1u);
  std::vector<std::byte> memory(4096);
  ASSERT_EQ(node.accepted[0]->PostReceive({1, 0}, {View(*node.transport, memory)}, &receive),
            Posted::kAccepted);
  ASSERT_EQ(peer.Clear(0).may_read, 1);
  OfferCell offer = Offer(peer.Clear(0).receive_id, 4096);
  offer.address = 64;  // nothing lies there
  offer.offer_id = 11;
  peer.Write(offer);
  AnswerCell answer;
  ASSERT_TRUE(PumpUntil({&node}, [&] {
    if (peer.wire->segment.backward_cells()[1].sequence != 2) return false;
    std::memcpy(&answer, peer.wire->segment.backward_cells()[1].body, sizeof answer);
    return true;
  }));
  EXPECT_EQ(answer.kind, static_cast<uint8_t>(shm::CellKind::kAnswer));
  EXPECT_EQ(answer.was_read, 0);
  EXPECT_EQ(answer.offer_id, 11u);
  EXPECT_FALSE(receive.done());
  peer.WriteWhole(offer.receive_id, 4096);
  ASSERT_TRUE(PumpUntil({&node}, [&] { return receive.done(); }));
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(memory, std::vector<std::byte>(4096, std::byte{0x5A}));
}

// The sender is this process, so that what it offers can be read.
TEST(ShmOffers, AnUrgentOneThatCannotBeReadTakesNothingFromOneThatIsPartlyRead) {
  Request large, urgent;
  ShmNode node(1, 64, {{"shm.single_copy", "on"}, {"shm.single_copy_min", "4096"}});
  node.Open();
  ScriptedSender peer(&node);
  ASSERT_EQ(node.accepted.size(), 1u);
  const std::vector<std::byte> state = RandomBytes(32 << 20, 1);  // many turns
  std::vector<std::byte> in(state.size()), small(4096);
  for (auto [to, request] : {std::pair(&in, &large), std::pair(&small, &urgent)}) {
    ASSERT_EQ(node.accepted[0]->PostReceive({2, 0}, {View(*node.transport, *to)}, request),
              Posted::kAccepted);
  }
  OfferCell offer = Offer(peer.Clear(0).receive_id, state.size());
  offer.address = reinterpret_cast<uintptr_t>(state.data());
  peer.Write(offer);
  for (int turn = 0; turn < 3; ++turn) node.transport->Progress(Now());
  ASSERT_FALSE(large.done());
  OfferCell refused = Offer(peer.Clear(1).receive_id, 4096);
  refused.address = 64;  // nothing lies there
  refused.urgency = 2;
  peer.Write(refused);
  ASSERT_TRUE(PumpUntil({&node}, [&] { return large.done(); }));
  EXPECT_TRUE(large.status().ok()) << large.status();
  EXPECT_TRUE(in == state);
  EXPECT_FALSE(urgent.done());
  peer.WriteWhole(refused.receive_id, 4096);
  ASSERT_TRUE(PumpUntil({&node}, [&] { return urgent.done(); }));
  EXPECT_TRUE(urgent.status().ok()) << urgent.status();
}

// As where a receiver has no descriptor for it. The sender goes on, and has no reason to wait with
// what is small.
TEST(ShmOffers, OneOfMemoryThatNeverCameKeepsItsReceiveFromEagerMessages) {
  Request large, small;
  ShmNode node(1);
  node.Open();
  ScriptedSender peer(&node);
  ASSERT_EQ(node.accepted.size(), 1u);
  std::vector<std::byte> memory(4096), more(64);
  for (auto [to, request] : {std::pair(&memory, &large), std::pair(&more, &small)}) {
    ASSERT_EQ(node.accepted[0]->PostReceive({2, 0}, {View(*node.transport, *to)}, request),
              Posted::kAccepted);
  }
  OfferCell offer = Offer(peer.Clear(0).receive_id, 4096);
  offer.share = 1;
  peer.Write(offer);
  peer.Write(Eager(0));
  ASSERT_TRUE(PumpUntil({&node}, [&] { return large.done() || small.done(); }));
  EXPECT_FALSE(large.done());
  peer.WriteWhole(offer.receive_id, 4096);
  ASSERT_TRUE(PumpUntil({&node}, [&] { return large.done() && small.done(); }));
  EXPECT_TRUE(large.status().ok() && small.status().ok()) << large.status() << small.status();
  EXPECT_EQ(small.bytes(), 64u);
  EXPECT_EQ(memory, std::vector<std::byte>(4096, std::byte{0x5A}));
}

// An acceptor that speaks the handshake and then writes clear-to-sends by hand.
struct ScriptedReceiver {
  explicit ScriptedReceiver(uint32_t receives_max) : bell(*Doorbell::Create()), sender(0) {
    listener = *shm::ListenUnix(&address);
    sender.Open();
    link = sender.transport->Connect(address, Rank(5), Now());
    EXPECT_TRUE(PumpUntil({&sender}, [&] {
      if (arriving == nullptr) {
        FileDescriptor socket(
            accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (socket.get() < 0) return false;
        arriving = std::make_unique<Arriving>(std::move(socket), IdentityOf(sender, 5),
                                              receives_max, &bell, absl::InfiniteFuture());
      }
      auto got = arriving->Step(Now());
      EXPECT_TRUE(got.ok()) << got.status();
      if (got.ok() && got->has_value()) wire = **std::move(got);
      return wire.has_value() || !got.ok();
    }));
  }
  void Clear(uint64_t tag, uint8_t kind = 4) {
    ClearToSendCell clear;
    clear.tag = tag, clear.kind = kind, clear.capacity = 1 << 20, clear.may_read = may_read;
    Write(clear);
  }
  void Answer(uint64_t offer_id, uint8_t was_read) {
    AnswerCell answer;
    answer.offer_id = offer_id, answer.was_read = was_read;
    Write(answer);
  }
  template <typename Body>
  void Write(const Body& body) {
    Cell& cell = wire->segment.backward_cells()[next % 256];
    std::memcpy(cell.body, &body, sizeof body);
    cell.sequence.store(++next, std::memory_order_release);
  }
  // Sends 1 MiB that this receiver may read; the offer.
  OfferCell TakeOffer(Request* request) {
    (void)link->PostSend({1, 0}, View(*sender.transport, bytes), request);
    may_read = 1;
    Clear(1);
    const Cell& cell = wire->segment.forward_cells()[0];
    EXPECT_TRUE(PumpUntil({&sender}, [&] { return cell.sequence == 1; }));
    OfferCell offer;
    std::memcpy(&offer, cell.body, sizeof offer);
    EXPECT_EQ(offer.kind, static_cast<uint8_t>(shm::CellKind::kOffer));
    return offer;
  }
  void ExpectBroken() {
    ASSERT_TRUE(PumpUntil({&sender}, [&] { return !link->status().ok(); }));
    EXPECT_EQ(link->status().code(), absl::StatusCode::kDataLoss) << link->status();
  }
  Doorbell bell;
  ShmNode sender;
  std::string address;
  FileDescriptor listener;
  std::unique_ptr<SendLink> link;
  std::unique_ptr<Arriving> arriving;
  std::optional<Wire> wire;
  uint64_t next = 0;
  uint8_t may_read = 0;
  std::vector<std::byte> bytes = std::vector<std::byte>(1 << 20);
};

TEST(ShmSender, SendsInPiecesWhatTheReceiverCannotRead) {
  Request request;
  ScriptedReceiver peer(10);
  OfferCell offer = peer.TakeOffer(&request);
  EXPECT_EQ(offer.total, peer.bytes.size());
  EXPECT_EQ(offer.address, reinterpret_cast<uintptr_t>(peer.bytes.data()));
  peer.Answer(offer.offer_id, 0);
  const Cell& cell = peer.wire->segment.forward_cells()[1];
  ASSERT_TRUE(PumpUntil({&peer.sender}, [&] { return cell.sequence == 2; }));
  EXPECT_EQ(static_cast<shm::CellKind>(cell.body[0]), shm::CellKind::kData);
}

TEST(ShmSender, IsDoneOnceTheReceiverHasRead) {
  Request request;
  ScriptedReceiver peer(10);
  OfferCell offer = peer.TakeOffer(&request);
  EXPECT_FALSE(request.done());
  peer.Answer(offer.offer_id, 1);
  ASSERT_TRUE(PumpUntil({&peer.sender}, [&] { return request.done(); }));
  EXPECT_TRUE(request.status().ok()) << request.status();
  peer.Answer(offer.offer_id, 1);  // once more: nonsense
  peer.ExpectBroken();
}

// More of them than may wait, for a tag that nobody asks for.
TEST(ShmReceiver, KeepsAWindowOfEagerMessagesAndNoMore) {
  ShmNode node(1);
  node.Open();
  ScriptedSender peer(&node);
  ASSERT_EQ(node.accepted.size(), 1u);
  for (uint64_t number = 0; number < EagerRecord::kWindow; ++number) {
    EagerCell cell = Eager(number);
    cell.tag = 77;
    peer.Write(cell);
    if (number % 8 == 7) node.transport->Progress(Now());
  }
  node.transport->Progress(Now());
  EXPECT_TRUE(node.accepted[0]->status().ok()) << node.accepted[0]->status();
  peer.Write(Eager(EagerRecord::kWindow));
  ASSERT_TRUE(PumpUntil({&node}, [&] { return !node.accepted[0]->status().ok(); }));
  EXPECT_EQ(node.accepted[0]->status().code(), absl::StatusCode::kDataLoss);
}

TEST(ShmSender, SurvivesNonsenseFromTheReceiver) {
  {
    ScriptedReceiver peer(10);
    shm::MatchedCell matched;
    matched.matched.base = 1;  // of none that were sent
    peer.Write(matched);
    peer.ExpectBroken();
  }
  {
    ScriptedReceiver peer(100);
    peer.Clear(1, 1);  // a kind that receivers do not write
    peer.ExpectBroken();
  }
  {
    ScriptedReceiver peer(10);
    for (uint64_t i = 0; i < 11; ++i) peer.Clear(i);  // more than it announced
    peer.ExpectBroken();
  }
  {
    ScriptedReceiver peer(10);
    std::vector<std::byte> bytes(8 << 20);
    Request request;
    (void)peer.link->PostSend({1, 0}, View(*peer.sender.transport, bytes).Slice(0, 1 << 20),
                              &request);
    (void)peer.link->PostSend({1, 0}, View(*peer.sender.transport, bytes).Slice(0, 1 << 20),
                              &request);
    peer.wire->segment.forward_reader()->consumed = 1000;
    peer.Clear(1);
    peer.Clear(1);
    peer.ExpectBroken();
    EXPECT_EQ(request.status(), peer.link->status());
  }
}

}  // namespace
}  // namespace weft::net
