// Messages of one link, by number, each with memory of its own: for tests of transports that send
// small messages ahead of their receives.
#ifndef WEFT_TESTS_NET_LINK_MESSAGES_H_
#define WEFT_TESTS_NET_LINK_MESSAGES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "base/random.h"
#include "net/eager.h"
#include "net/transport.h"

namespace weft::net {

class LinkMessages {
 public:
  static constexpr size_t kBytes = 1000;

  // Both ends of the link, and what turns them until a condition holds; false: it gave up.
  struct Ends {
    Transport& from;
    SendLink& out;
    Transport& to;
    ReceiveLink& in;
    std::function<bool(const std::function<bool()>& condition)> until;
  };
  LinkMessages(Ends ends, size_t count, size_t bytes)
      : sends(count), receives(count), ends_(std::move(ends)) {
    for (size_t i = 0; i < count; ++i) {
      Random random(i + 1);
      std::generate_n(std::back_inserter(from_.emplace_back()), bytes,
                      [&] { return static_cast<std::byte>(random()); });
      to_.emplace_back(bytes, std::byte{0xEE});
      from_regions_.push_back(*ends_.from.Register(from_[i].data(), bytes));
      to_regions_.push_back(*ends_.to.Register(to_[i].data(), bytes));
    }
  }
  void Send(size_t i, MessageKey key = {1, 0}) { Send(i, key, from_regions_[i].view()); }
  void Send(size_t i, MessageKey key, const SendSource& source) {
    ASSERT_EQ(ends_.out.PostSend(key, source, &sends[i]), Posted::kAccepted);
  }
  RegionView view_of_send(size_t i) const { return from_regions_[i].view(); }
  void Receive(size_t i, MessageKey key = {1, 0}, size_t most = SIZE_MAX) {
    Receive(i, key, {to_regions_[i].view().Slice(0, std::min(most, to_[i].size()))});
  }
  void Receive(size_t i, MessageKey key, const ReceiveTarget& target) {
    ASSERT_EQ(ends_.in.PostReceive(key, target, &receives[i]), Posted::kAccepted);
  }
  RegionView view_of_receive(size_t i) const { return to_regions_[i].view(); }
  bool Came(size_t i) {
    return ends_.until([&] { return sends[i].done() && receives[i].done(); }) &&
           sends[i].status().ok() && receives[i].status().ok() && to_[i] == from_[i];
  }

  std::deque<Request> sends, receives;

 private:
  Ends ends_;
  std::deque<std::vector<std::byte>> from_, to_;
  std::deque<Region> from_regions_, to_regions_;
};

// 100 messages of tags of their own, without receives: a window of them goes, and each comes once
// its receive is posted. `settle` gives both ends the turns that they have a use for.
inline void ExpectAWindowOfMessagesWaits(LinkMessages& messages,
                                         const std::function<void()>& settle) {
  for (size_t i = 0; i < 100; ++i) messages.Send(i, {i, 0});
  settle();
  EXPECT_EQ(std::count_if(messages.sends.begin(), messages.sends.end(),
                          [](const Request& send) { return send.done(); }),
            EagerRecord::kWindow);
  // The last is not held up by those before it.
  messages.Receive(99, {99, 0});
  ASSERT_TRUE(messages.Came(99));
  for (size_t i = 0; i < 99; ++i) {
    messages.Receive(i, {i, 0});
    ASSERT_TRUE(messages.Came(i)) << i;
  }
}

// All that may wait is of tag 1, whose receives will never come: `unwanted`, of the receiving end,
// is set to it after half of them have come. Then others go again ahead of their receives. The
// messages are 130, and `settle` as above.
inline void ExpectUnwantedMessagesToBeDropped(LinkMessages& messages, ReceiveLink& in,
                                              uint64_t& unwanted,
                                              const std::function<void()>& settle) {
  constexpr size_t kHalf = EagerRecord::kWindow / 2;
  const auto send = [&](size_t begin, size_t end, uint64_t tag) {
    for (size_t i = begin; i < end; ++i) messages.Send(i, {tag, 0});
    settle();
    return std::all_of(messages.sends.begin() + static_cast<std::ptrdiff_t>(begin),
                       messages.sends.begin() + static_cast<std::ptrdiff_t>(end),
                       [](const Request& send) { return send.done() && send.status().ok(); });
  };
  ASSERT_TRUE(send(0, kHalf, 1));
  unwanted = 1;
  in.DropUnwanted();
  settle();
  ASSERT_TRUE(send(kHalf, 2 * kHalf, 1));
  ASSERT_TRUE(send(2 * kHalf, 3 * kHalf, 2));  // and these are kept
  for (size_t i = 2 * kHalf; i < 3 * kHalf; ++i) {
    messages.Receive(i, {2, 0});
    ASSERT_TRUE(messages.Came(i)) << i;
  }
  ASSERT_TRUE(send(3 * kHalf, 4 * kHalf, 1)) << "their places were not given back";
}

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_LINK_MESSAGES_H_
