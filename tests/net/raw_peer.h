// A peer made by hand: a plain socket that shakes hands properly and then says whatever a test
// wants.
#ifndef WEFT_TESTS_NET_RAW_PEER_H_
#define WEFT_TESTS_NET_RAW_PEER_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "net/handshake.h"
#include "net/tcp/connector.h"
#include "net/tcp/frame.h"
#include "net/tcp/socket.h"
#include "tests/net/harness.h"

namespace weft::net {

class RawPeer {
 public:
  explicit RawPeer(FileDescriptor fd) : fd_(std::move(fd)) {
    fcntl(fd_.get(), F_SETFL, O_NONBLOCK);
  }
  static RawPeer ConnectTo(const std::string& address) {
    auto parsed = SocketAddress::Parse(address);
    FileDescriptor fd(socket(parsed->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), parsed->get(), parsed->size()), 0) << address;
    return RawPeer(std::move(fd));
  }

  bool Say(absl::string_view bytes) const {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool Say(const FrameHeader& header, absl::string_view payload = {}) const {
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes.append(payload.data(), payload.size());
    return Say(bytes);
  }
  // What has come so far; sets closed() when the other side has closed.
  std::string Hear() {
    char buffer[65536];
    ssize_t got = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN)) closed_ = true;
    return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : "";
  }
  bool closed() const { return closed_; }
  int fd() const { return fd_.get(); }
  // In order, as a process that ends, although something may be unread.
  void Close() {
    shutdown(fd_.get(), SHUT_WR);
    fd_ = FileDescriptor();
  }
  // Exactly `size` bytes, while `node` turns; shorter when it was closed.
  std::string HearExactly(Node& node, size_t size) {
    std::string out;
    DriveUntil({&node}, [&] {
      char c = 0;
      while (out.size() < size) {
        ssize_t got = recv(fd_.get(), &c, 1, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN)) closed_ = true;
        if (got != 1) break;
        out += c;
      }
      return closed_ || out.size() == size;
    });
    return out;
  }
  FrameHeader HearHeader(Node& node) {
    FrameHeader header;
    std::string bytes = HearExactly(node, sizeof(header));
    if (bytes.size() == sizeof(header)) std::memcpy(&header, bytes.data(), sizeof(header));
    return header;
  }

  // The connector's part, as rank `rank` of `world_size`, on one of `count` sockets of link `id`.
  bool ShakeHands(Node& node, int rank, int world_size, uint64_t id = 1, uint16_t index = 0,
                  uint16_t count = 1) {
    return ShakeHands(node, rank, world_size, LinkParameters{id, index, count});
  }
  bool ShakeHands(Node& node, int rank, int world_size, const LinkParameters& parameters) {
    return ShakeHands(node, rank, world_size, parameters.Encode(), HandshakePurpose::kTcpLink);
  }
  bool ShakeHands(Node& node, int rank, int world_size, const std::string& parameters,
                  HandshakePurpose purpose) {
    TransportOptions options = OptionsFor(rank, world_size, {});
    HandshakeIdentity self{options.self, options.world_size, options.secret, purpose};
    ConnectorHandshake handshake(self, Rank(node.rank()), parameters, NewNonce());
    Pump(node, handshake);
    return handshake.state() == HandshakeState::kDone;
  }
  // The listener's part.
  bool AcceptHands(Node& node, int rank, int world_size) {
    TransportOptions options = OptionsFor(rank, world_size, {});
    HandshakeIdentity self{options.self, options.world_size, options.secret,
                           HandshakePurpose::kTcpLink};
    ListenerHandshake handshake(self, NewNonce());
    Pump(node, handshake);
    return handshake.state() == HandshakeState::kDone;
  }

 private:
  static void Decide(ListenerHandshake& handshake) {
    if (handshake.state() == HandshakeState::kHello) handshake.Accept("");
  }
  static void Decide(ConnectorHandshake&) {}
  template <typename Handshake>
  void Pump(Node& node, Handshake& handshake) {
    DriveUntil({&node}, [&] {
      char c = 0;
      while (handshake.state() == HandshakeState::kRunning && recv(fd_.get(), &c, 1, 0) == 1) {
        handshake.Feed({&c, 1});
        Decide(handshake);
      }
      std::string out = handshake.TakeOutput();
      if (!out.empty()) Say(out);
      return handshake.state() == HandshakeState::kDone ||
             handshake.state() == HandshakeState::kFailed;
    });
  }
  FileDescriptor fd_;
  bool closed_ = false;
};

// A message goes over a link between two nodes beside whatever a raw peer has done: `out` is the
// link's end at `from`, `in` the one at `to`.
inline void ExpectMessagePasses(Node& from, SendLink* out, Node& to, ReceiveLink* in) {
  Request send, receive;
  Buffer source(from.transport(), 3000), target(to.transport(), 3000);
  source.FillPattern(4);
  ASSERT_EQ(out->PostSend({1, 1}, source.view(), &send), Posted::kAccepted);
  ASSERT_EQ(in->PostReceive({1, 1}, {target.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(DriveUntil({&to, &from}, [&] { return send.done() && receive.done(); }));
  EXPECT_EQ(target.CheckPattern(4, 3000), "");
}

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_RAW_PEER_H_
