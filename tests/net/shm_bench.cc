// Latency and bandwidth of the shm transport between two processes, by message size; not a test.
//
//   shm_bench [--sleep] [NAME=VALUE setting]...     e.g. shm_bench shm.slot_bytes=64KiB
//
// Columns: bytes; one-way latency of a ping-pong (us); bandwidth of a window of up to 16 messages
// in flight, stored and reduced as float sums (GB/s). The child sends, or answers; both poll, with
// sched_yield when idle; --sleep makes both sleep instead.
#include <sched.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/net/shm_test_util.h"

namespace weft::net {
namespace {

constexpr int kWindow = 16;

void Sum(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  auto* o = reinterpret_cast<float*>(out);
  auto* a = reinterpret_cast<const float*>(local);
  auto* b = reinterpret_cast<const float*>(incoming);
  for (size_t i = 0; i < bytes / 4; ++i) o[i] = a[i] + b[i];
}

struct Side {
  Side(int rank, bool sleep, const std::vector<std::pair<std::string, std::string>>& settings)
      : node(rank, 2, settings), sleeps(sleep) {
    node.Open();
  }
  void Wait(const Request& request) {
    if (sleeps) {
      SleepUntil(
          &node, [&] { return request.done(); }, absl::Seconds(60));
      return;
    }
    for (int idle = 0; !request.done();) {
      if (node.transport->Progress(now)) {
        idle = 0;
      } else if (++idle > 2000) {
        sched_yield();
        now = Now();
        idle = 0;
      }
    }
  }
  void Link(const std::string& peer_address, int peer) {
    to = node.transport->Connect(peer_address, Rank(peer), Now());
    while (node.accepted.empty()) node.transport->Progress(Now());
    from = node.accepted[0].get();
  }
  RegionView Of(std::vector<std::byte>& buffer, size_t at, size_t size) {
    return View(*node.transport, buffer).Slice(at, size);
  }
  void PingPong(size_t size, int rounds, bool first) {
    out.resize(std::max(out.size(), size));
    in.resize(std::max(in.size(), size));
    for (int i = 0; i < rounds; ++i) {
      Request send, receive;
      (void)from->PostReceive({1, 0}, {Of(in, 0, size)}, &receive);
      if (!first) Wait(receive);
      (void)to->PostSend({1, 0}, Of(out, 0, size), &send);
      Wait(first ? receive : send);
      Wait(send);
    }
  }
  void Stream(size_t size, int rounds, bool sends, bool reduce) {
    size_t window = std::clamp<size_t>((32 << 20) / size, 2, kWindow);
    buffer.resize(std::max(buffer.size(), window * size));
    local.resize(buffer.size());
    std::array<Request, kWindow> requests;
    for (int i = 0; i < rounds + static_cast<int>(window); ++i) {
      size_t slot = static_cast<size_t>(i) % window;
      if (i >= static_cast<int>(window)) Wait(requests[slot]);
      if (i >= rounds) continue;
      RegionView view = Of(buffer, slot * size, size);
      if (sends) {
        (void)to->PostSend({2, 0}, view, &requests[slot]);
      } else {
        (void)from->PostReceive(
            {2, 0}, {view, reduce ? local.data() + slot * size : nullptr, reduce ? Sum : nullptr},
            &requests[slot]);
      }
    }
  }
  ShmNode node;
  bool sleeps;
  std::vector<std::byte> buffer, local, out, in;
  absl::Time now = Now();
  std::unique_ptr<SendLink> to;
  ReceiveLink* from = nullptr;
};

int Run(bool sleep, const std::vector<std::pair<std::string, std::string>>& settings) {
  std::array<int, 2> up{}, down{};
  if (pipe(up.data()) != 0 || pipe(down.data()) != 0) return 1;
  pid_t child = fork();
  bool first = child != 0;
  Side side(first ? 0 : 1, sleep, settings);
  std::string own = side.node.transport->address(), other(own.size(), ' ');
  if (write(first ? down[1] : up[1], own.data(), own.size()) < 0) return 1;
  if (read(first ? up[0] : down[0], other.data(), other.size()) < 0) return 1;
  side.Link(other, first ? 1 : 0);
  if (first) printf("%10s %12s %12s %12s\n", "bytes", "latency us", "store GB/s", "reduce GB/s");
  for (size_t size = 8; size <= size_t{16} << 20; size *= size < 4096 ? 8 : 4) {
    int rounds = static_cast<int>(std::clamp<size_t>((256 << 20) / (size + 4096), 16, 20000));
    auto time = [&](auto body) {
      side.PingPong(size, 4, first);
      absl::Time start = Now();
      body();
      return absl::ToDoubleMicroseconds(Now() - start);
    };
    double latency = time([&] { side.PingPong(size, rounds, first); }) / rounds / 2;
    std::array<double, 2> rate{};
    for (bool reduce : {false, true}) {
      side.Stream(size, kWindow, !first, reduce);
      double us = time([&] { side.Stream(size, rounds, !first, reduce); });
      rate[reduce ? 1 : 0] = static_cast<double>(size) * rounds / us / 1e3;
    }
    if (first) printf("%10zu %12.2f %12.2f %12.2f\n", size, latency, rate[0], rate[1]);
    fflush(stdout);
  }
  side.PingPong(8, 1, first);
  side.to.reset();
  side.node.accepted.clear();
  if (first) waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace weft::net

int main(int argc, char** argv) {
  bool sleep = false;
  std::vector<std::pair<std::string, std::string>> settings;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    size_t equal = word.find('=');
    if (word == "--sleep") {
      sleep = true;
    } else if (equal != std::string::npos) {
      settings.emplace_back(word.substr(0, equal), word.substr(equal + 1));
    } else {
      fprintf(stderr, "usage: shm_bench [--sleep] [SETTING=VALUE]...\n");
      return 2;
    }
  }
  return weft::net::Run(sleep, settings);
}
