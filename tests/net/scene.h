// Two processes that are linked both ways: the test, and a child of it that can be stopped or
// killed in the middle of what it does.
#ifndef WEFT_TESTS_NET_SCENE_H_
#define WEFT_TESTS_NET_SCENE_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/net/harness.h"

namespace weft::net {

// Larger than all that sockets or slots hold on the way: a sender whose receiver stops gets stuck.
inline constexpr size_t kLarge = 96 << 20;

// The child's side of a pair: rank 1 of 2, linked both ways with rank 0, which is the test.
struct ChildNode {
  explicit ChildNode(TransportKind kind, const Child::Channel& channel) : node(kind, 1, 2) {
    channel.Say(node.address());
    out = node.Connect(channel.Hear(), 0);
    // Until the other side has accepted as well: our part in that needs turns.
    linked = DriveUntil({&node}, [&] {
      pollfd fd{channel.in, POLLIN, 0};
      return node.accepted(0) != nullptr && poll(&fd, 1, 0) == 1;
    });
    channel.Hear();
    in = node.accepted(0);
    channel.Say("linked");
  }
  Request request;  // outlives the links that it is posted to
  Node node;
  SendLink* out = nullptr;
  ReceiveLink* in = nullptr;
  bool linked = false;
};

// The test's side.
struct ParentNode {
  ParentNode(TransportKind kind, const Child::Channel& channel,
             std::vector<std::string> settings = {})
      : node(kind, 0, 2, std::move(settings)) {
    out = node.Connect(channel.Hear(), 1);
    channel.Say(node.address());
    EXPECT_TRUE(DriveUntil({&node}, [&] { return node.accepted(1) != nullptr; }));
    in = node.accepted(1);
    channel.Say("linked here");
    // Until the other side has accepted as well: our part in that, too, needs turns.
    EXPECT_TRUE(DriveUntil({&node}, [&] {
      pollfd fd{channel.in, POLLIN, 0};
      return poll(&fd, 1, 0) == 1;
    }));
  }
  bool BothBroken() const { return !out->status().ok() && !in->status().ok(); }
  Node node;
  SendLink* out = nullptr;
  ReceiveLink* in = nullptr;
};

// The two, linked both ways. `body` is what the child does then; its result is the exit status.
struct Scene {
  using Body = std::function<int(ChildNode&, const Child::Channel&)>;
  Scene(TransportKind kind, const Body& body)
      : child([&](Child::Channel& channel) {
          ChildNode node(kind, channel);
          return body(node, channel);
        }),
        parent(kind, child.channel()) {
    EXPECT_EQ(Hear(), "linked");
  }
  std::string Hear() { return child.channel().Hear(); }
  void Say(const std::string& line) { child.channel().Say(line); }
  // Until the child has something to say; the test's node goes on meanwhile.
  bool DriveUntilHeard() {
    return DriveUntil({&parent.node}, [&] {
      pollfd fd{child.channel().in, POLLIN, 0};
      return poll(&fd, 1, 0) == 1;
    });
  }
  // Kills the child; false unless both links then break.
  bool KillAndBreak() {
    child.Signal(SIGKILL);
    return DriveUntil({&parent.node}, [&] { return parent.BothBroken(); });
  }
  Child child;
  ParentNode parent;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_SCENE_H_
