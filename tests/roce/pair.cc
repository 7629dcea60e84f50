// verbs_pair RANK FILE STEP... [SETTING=VALUE]...: one of two ranks that exchange messages over the
// verbs transport, or with transport=multipath over that. Both are given the same steps; rank 0
// prints their results.
//
//   data                       checks every byte, stored and reduced   data ok
//   latency:SIZE:ROUNDS        half a round trip, the median            latency SIZE US
//   bandwidth:SIZE:COUNT       one way, 16 messages outstanding         bandwidth SIZE MB_PER_S
//   seconds:SIZE:SECONDS       the same, for so long                    bandwidth SIZE MB_PER_S
//   link                       both: what the link it sends on says     link TEXT
//   lanes                      both: of the link it sends on, each      lane BYTES US PORT NAME
//   go:NAME                    goes on once there is a file NAME
//
// It polls, as perftest does.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "tests/roce/rank.h"

namespace weft::net {
namespace {

constexpr absl::Duration kSpin = absl::Milliseconds(20);
constexpr int kOutstanding = 16;
constexpr size_t kPage = 4096;

void Send(TestRank& rank, const Buffer& buffer, size_t bytes) {
  Request request;
  WEFT_CHECK(
      rank.out()->PostSend({1, 0}, buffer.view().Slice(0, bytes), &request) == Posted::kAccepted,
      "");
  rank.Await(&request, kSpin);
}

size_t Receive(TestRank& rank, Buffer& buffer, size_t bytes, bool reduce) {
  Request request;
  ReceiveTarget target{buffer.view().Slice(0, bytes)};
  if (reduce) target.local = buffer.data(), target.reduce = AddBytes;
  WEFT_CHECK(rank.in()->PostReceive({1, 0}, target, &request) == Posted::kAccepted, "");
  rank.Await(&request, kSpin);
  return request.bytes();
}

void Data(TestRank& rank) {
  for (size_t bytes : {0, 1, 128, 129, 4096, 65536, 300001, 4 << 20}) {
    for (bool reduce : {false, true}) {
      Buffer buffer(rank.node().transport(), bytes);
      if (rank.rank() == 0) {
        buffer.FillPattern(bytes);
        Send(rank, buffer, bytes);
        continue;
      }
      buffer.Clear(reduce ? 3 : 0xEE);
      Receive(rank, buffer, bytes, reduce);
      for (size_t i = 0; reduce && i < bytes; ++i) {
        buffer.data()[i] = static_cast<std::byte>(static_cast<uint8_t>(buffer.data()[i]) - 3);
      }
      const std::string wrong = buffer.CheckPattern(bytes, bytes);
      WEFT_CHECK(wrong.empty(), wrong);
    }
  }
  Buffer done(rank.node().transport(), 8);  // rank 0 hears of it
  if (rank.rank() == 0) {
    Receive(rank, done, 8, false);
    std::puts("data ok");
  } else {
    Send(rank, done, 8);
  }
}

void Latency(TestRank& rank, size_t bytes, int rounds) {
  Buffer buffer(rank.node().transport(), bytes);
  std::vector<double> times;
  std::deque<Request> receives(2), sends(4);  // a send's completion is waited for when it is due
  const auto post = [&](int i) {
    WEFT_CHECK(rank.in()->PostReceive({2, 0}, {buffer.view()},
                                      &receives[static_cast<size_t>(i % 2)]) == Posted::kAccepted,
               "");
  };
  post(0);
  for (int i = 0; i < rounds; ++i) {
    const absl::Time start = Now();
    // The next receive is posted ahead, as a program that expects a message does.
    post(i + 1);
    Request& send = sends[static_cast<size_t>(i % 4)];
    rank.Await(&send, kSpin);
    if (rank.rank() == 1) rank.Await(&receives[static_cast<size_t>(i % 2)], kSpin);
    WEFT_CHECK(rank.out()->PostSend({2, 0}, buffer.view(), &send) == Posted::kAccepted, "");
    if (rank.rank() == 0) rank.Await(&receives[static_cast<size_t>(i % 2)], kSpin);
    times.push_back(absl::ToDoubleMicroseconds(Now() - start) / 2);
  }
  Request last;  // for the receive that is left over
  WEFT_CHECK(rank.out()->PostSend({2, 0}, buffer.view(), &last) == Posted::kAccepted, "");
  rank.Await(&receives[static_cast<size_t>(rounds % 2)], kSpin);
  for (Request& send : sends) rank.Await(&send, kSpin);
  rank.Await(&last, kSpin);
  std::sort(times.begin(), times.end());
  if (rank.rank() == 0) std::printf("latency %zu %.1f\n", bytes, times[times.size() / 2]);
}

// Until `count`, or for `time`; the last message is an empty one.
void Bandwidth(TestRank& rank, size_t bytes, int count, absl::Duration time) {
  Buffer buffer(rank.node().transport(), bytes, kPage);  // as perftest's
  std::deque<Request> requests(kOutstanding);
  const absl::Time start = Now();
  int posted = 0, done = 0;
  bool ending = false;
  while (!ending || done < posted) {
    if (!ending && posted < done + kOutstanding) {
      Request& request = requests[static_cast<size_t>(posted % kOutstanding)];
      ending = rank.rank() == 0 && (posted == count || Now() - start > time);
      const RegionView view = buffer.view().Slice(0, ending ? 0 : bytes);
      const Posted result = rank.rank() == 0 ? rank.out()->PostSend({3, 0}, view, &request)
                                             : rank.in()->PostReceive({3, 0}, {view}, &request);
      WEFT_CHECK(result == Posted::kAccepted, "");
      ++posted;
      continue;
    }
    Request& oldest = requests[static_cast<size_t>(done++ % kOutstanding)];
    rank.Await(&oldest, kSpin);
    if (rank.rank() == 1 && oldest.bytes() == 0) break;
  }
  const double seconds = absl::ToDoubleSeconds(Now() - start);
  // The receives that are left over get theirs.
  for (int i = 0; i < kOutstanding - 1; ++i) {
    if (rank.rank() == 0) {
      Request request;
      WEFT_CHECK(
          rank.out()->PostSend({3, 0}, buffer.view().Slice(0, 0), &request) == Posted::kAccepted,
          "");
      rank.Await(&request, kSpin);
    } else {
      rank.Await(&requests[static_cast<size_t>((done + i) % kOutstanding)], kSpin);
    }
  }
  if (rank.rank() == 0) {
    std::printf("bandwidth %zu %.1f\n", bytes,
                static_cast<double>(bytes) * (posted - 1) / seconds / 1e6);
  }
}

void Step(TestRank& rank, const std::string& step) {
  const std::vector<std::string> words = absl::StrSplit(step, ':');
  const auto number = [&](size_t i) {
    int value = 0;
    WEFT_CHECK(i < words.size() && absl::SimpleAtoi(words[i], &value), step);
    return value;
  };
  if (words[0] == "data") {
    Data(rank);
  } else if (words[0] == "latency") {
    Latency(rank, static_cast<size_t>(number(1)), number(2));
  } else if (words[0] == "bandwidth") {
    Bandwidth(rank, static_cast<size_t>(number(1)), number(2), absl::InfiniteDuration());
  } else if (words[0] == "seconds") {
    Bandwidth(rank, static_cast<size_t>(number(1)), -1, absl::Seconds(number(2)));
  } else if (words[0] == "link") {
    std::printf("link %s\n", rank.out()->Describe().c_str());
  } else if (words[0] == "lanes") {
    for (const LaneReport& lane : rank.out()->Lanes()) {
      std::printf("lane %llu %.0f %d %s\n", static_cast<unsigned long long>(lane.bytes),
                  absl::ToDoubleMicroseconds(lane.rtt.value_or(absl::ZeroDuration())),
                  lane.source_port, lane.name.c_str());
    }
  } else {
    WEFT_CHECK(words[0] == "go" && words.size() == 2, step);
    while (access(words[1].c_str(), F_OK) != 0) {
      DriveUntil(
          {&rank.node()}, [] { return false; }, absl::Milliseconds(20));
    }
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  const weft::net::TestRankArguments arguments = weft::net::ParseTestRank(argc, argv);
  weft::net::TestRank rank(arguments.rank, arguments.file, arguments.settings);
  for (const std::string& step : arguments.steps) weft::net::Step(rank, step);
  weft::net::Step(rank, "latency:8:1");  // both are through
  return 0;
}
