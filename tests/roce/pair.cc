// verbs_pair RANK FILE SETTING...: one of two ranks that exchange messages over the verbs transport
// and check every byte; their addresses go through files FILE.0 and FILE.1. It prints lines:
//
//   data ok                   rank 0: all messages, stored and combined, were right
//   link TEXT                 both: what the link that it sends on says of itself
//   latency SIZE US           rank 0: half a round trip, the median
//   bandwidth SIZE MB_PER_S   rank 0: one way, 16 messages outstanding
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "tests/net/harness.h"

namespace weft::net {
namespace {

class PairRank {
 public:
  PairRank(int rank, const std::string& file, const std::vector<std::string>& settings)
      : rank_(rank), node_(TransportKind::kVerbs, rank, 2, settings) {
    const std::string own = file + "." + std::to_string(rank);
    std::ofstream(own + ".new") << node_.address();
    std::rename((own + ".new").c_str(), own.c_str());
    std::string address;
    const absl::Time end = Now() + kPatience;
    while (address.empty() && Now() < end) {
      std::ifstream(file + "." + std::to_string(1 - rank)) >> address;
      if (address.empty()) usleep(10000);
    }
    out_ = node_.Connect(address, 1 - rank);
    WEFT_CHECK(DriveUntil({&node_}, [&] { return node_.accepted(1 - rank) != nullptr; }),
               out_->status());
  }

  void Send(const Buffer& buffer, size_t bytes) {
    Request request;
    WEFT_CHECK(out_->PostSend({1, 0}, buffer.view().Slice(0, bytes), &request) == Posted::kAccepted,
               "");
    Finish(&request);
  }
  void Receive(Buffer& buffer, size_t bytes, bool combine) {
    Request request;
    ReceiveTarget target{buffer.view().Slice(0, bytes)};
    if (combine) target.local = buffer.data(), target.combine = AddBytes;
    WEFT_CHECK(in()->PostReceive({1, 0}, target, &request) == Posted::kAccepted, "");
    Finish(&request);
  }
  void Finish(Request* request) {
    const bool ended = DriveUntil({&node_}, [&] { return request->done(); });
    WEFT_CHECK(ended && request->status().ok(), request->status());
  }

  void Data() {
    for (size_t bytes : {0, 1, 128, 129, 4096, 65536, 300001, 4 << 20}) {
      for (bool combine : {false, true}) {
        Buffer buffer(node_.transport(), bytes);
        if (rank_ == 0) {
          buffer.FillPattern(bytes);
          Send(buffer, bytes);
          continue;
        }
        buffer.Clear(combine ? 3 : 0xEE);
        Receive(buffer, bytes, combine);
        for (size_t i = 0; combine && i < bytes; ++i) {
          buffer.data()[i] = static_cast<std::byte>(static_cast<uint8_t>(buffer.data()[i]) - 3);
        }
        const std::string wrong = buffer.CheckPattern(bytes, bytes);
        WEFT_CHECK(wrong.empty(), wrong);
      }
    }
    // Rank 0 hears of it.
    Buffer done(node_.transport(), 8);
    if (rank_ == 0) {
      Receive(done, 8, false);
      std::puts("data ok");
    } else {
      Send(done, 8);
    }
    std::printf("link %s\n", out_->Describe().c_str());
  }

  void Latency(size_t bytes, int rounds) {
    Buffer buffer(node_.transport(), bytes);
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      const absl::Time start = Now();
      // The receive is posted before, as a program that waits for an answer does.
      Request send, receive;
      ReceiveTarget target{buffer.view()};
      WEFT_CHECK(in()->PostReceive({2, 0}, target, &receive) == Posted::kAccepted, "");
      if (rank_ == 1) Spin(&receive);
      WEFT_CHECK(out_->PostSend({2, 0}, buffer.view(), &send) == Posted::kAccepted, "");
      if (rank_ == 0) Spin(&receive);
      Spin(&send);
      times.push_back(absl::ToDoubleMicroseconds(Now() - start) / 2);
    }
    std::sort(times.begin(), times.end());
    if (rank_ == 0) std::printf("latency %zu %.1f\n", bytes, times[times.size() / 2]);
  }

  void Bandwidth(size_t bytes, int count) {
    constexpr int kOutstanding = 16;
    Buffer buffer(node_.transport(), bytes);
    std::deque<Request> requests(kOutstanding);
    const absl::Time start = Now();
    for (int i = 0; i < count + kOutstanding; ++i) {
      Request& request = requests[static_cast<size_t>(i % kOutstanding)];
      if (i >= kOutstanding) Spin(&request);
      if (i >= count) continue;
      const Posted posted = rank_ == 0 ? out_->PostSend({3, 0}, buffer.view(), &request)
                                       : in()->PostReceive({3, 0}, {buffer.view()}, &request);
      WEFT_CHECK(posted == Posted::kAccepted, "");
    }
    const double seconds = absl::ToDoubleSeconds(Now() - start);
    if (rank_ == 0) {
      std::printf("bandwidth %zu %.1f\n", bytes,
                  static_cast<double>(bytes) * count / seconds / 1e6);
    }
  }

 private:
  ReceiveLink* in() { return node_.accepted(1 - rank_); }
  void Spin(Request* request) {
    const absl::Time end = Now() + kPatience;
    while (!request->done() && Now() < end) node_.Progress();
    WEFT_CHECK(request->done() && request->status().ok(), request->status());
  }

  int rank_;
  Node node_;
  SendLink* out_ = nullptr;
};

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  int rank = -1;
  if (argc < 3 || !absl::SimpleAtoi(argv[1], &rank) || (rank != 0 && rank != 1)) {
    std::fprintf(stderr, "usage: verbs_pair 0|1 FILE [SETTING=VALUE]...\n");
    return 2;
  }
  std::vector<std::string> settings(argv + 3, argv + argc);
  weft::net::PairRank pair(rank, argv[2], settings);
  pair.Data();
  pair.Latency(8, 400);
  pair.Bandwidth(64 << 10, 800);
  pair.Bandwidth(1 << 20, 60);
  pair.Latency(8, 1);  // both are through
  return 0;
}
