// A TCP proxy on loopback that cuts the connections through it, as a firewall that has forgotten
// them: both ends get a reset after so many bytes, drawn from a seed, in the middle of anything.
#ifndef WEFT_TESTS_NET_CUTTING_PROXY_H_
#define WEFT_TESTS_NET_CUTTING_PROXY_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "net/tcp/socket.h"

namespace weft::net {

class CuttingProxy {
 public:
  CuttingProxy(const std::string& target, uint64_t seed)
      : target_(*SocketAddress::Parse(target)), random_(seed) {
    SocketAddress any = target_;
    any.set_port(0);
    listener_ = *Listen(any, {});
    address_ = LocalAddress(listener_.get());
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttingProxy() {
    stop_ = true;
    thread_.join();
  }
  const SocketAddress& address() const { return address_; }
  int cuts() const { return cuts_; }
  // Cuts all that stand, by and by.
  void Cut() { cut_all_ = true; }
  // The same, and those that come from now on after `bytes_max` bytes at most, both ways together;
  // every fourth after some hundred, so that handshakes are cut as well. 0: no more.
  void CutEvery(uint64_t bytes_max) { bytes_max_ = bytes_max, cut_all_ = true; }
  // Until further notice, takes in what the connecting, or the other, end sends, and keeps it.
  void Hold(bool client, bool server) { holds_[0] = client, holds_[1] = server; }
  // From now on nothing gets through: what comes is reset.
  void Refuse() { refuse_ = true, cut_all_ = true; }

 private:
  struct Way {
    int from, to;
    std::string held;  // read and not written
    bool ended = false, told = false;
  };
  struct Connection {
    FileDescriptor client, server;
    uint64_t left;  // until it is cut
    bool limited;
    Way ways[2];
  };

  static void Reset(FileDescriptor& fd) {
    linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    fd = FileDescriptor();
  }
  void Accept() {
    FileDescriptor client(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client) return;
    FileDescriptor server(socket(target_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (refuse_ || connect(server.get(), target_.get(), target_.size()) != 0) {
      return Reset(client);
    }
    fcntl(server.get(), F_SETFL, O_NONBLOCK);
    Connection& one = connections_.emplace_back();
    const uint64_t max = bytes_max_;
    one.limited = max > 0;
    if (max > 0) one.left = random_.Below(random_.Below(4) == 0 ? 500 : max);
    one.ways[0] = {client.get(), server.get(), {}};
    one.ways[1] = {server.get(), client.get(), {}};
    one.client = std::move(client);
    one.server = std::move(server);
  }
  bool Holds(const Connection& one, const Way& way) const { return holds_[&way - one.ways]; }
  // False: it is to be cut.
  bool Move(Connection& one, Way& way) {
    char buffer[16 << 10];
    const bool holds = Holds(one, way);
    if ((holds || way.held.empty()) && !way.ended) {
      const size_t room =
          one.limited ? std::min<uint64_t>(sizeof(buffer), one.left) : sizeof(buffer);
      if (room == 0) return false;
      ssize_t got = recv(way.from, buffer, room, MSG_DONTWAIT);
      if (got == 0) way.ended = true;
      if (got < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (got > 0) way.held.append(buffer, static_cast<size_t>(got));
      if (got > 0 && one.limited) one.left -= static_cast<uint64_t>(got);
    }
    if (!holds && !way.held.empty()) {
      ssize_t sent = send(way.to, way.held.data(), way.held.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (sent > 0) way.held.erase(0, static_cast<size_t>(sent));
    }
    if (way.ended && way.held.empty() && !way.told) {
      way.told = true;
      shutdown(way.to, SHUT_WR);
    }
    return true;
  }
  void Run() {
    while (!stop_) {
      std::vector<pollfd> fds = {{listener_.get(), POLLIN, 0}};
      for (Connection& one : connections_) {
        for (Way& way : one.ways) {
          if (!way.held.empty() && !Holds(one, way)) {
            fds.push_back({way.to, POLLOUT, 0});
          } else if (!way.ended) {
            fds.push_back({way.from, POLLIN, 0});
          }
        }
      }
      poll(fds.data(), fds.size(), 5);  // looks at the flags now and then
      if ((fds[0].revents & POLLIN) != 0) Accept();
      const bool all = cut_all_.exchange(false);
      for (auto one = connections_.begin(); one != connections_.end();) {
        const bool goes_on = !all && Move(*one, one->ways[0]) && Move(*one, one->ways[1]);
        const bool over = one->ways[0].told && one->ways[1].told;
        if (goes_on && !over) {
          ++one;
          continue;
        }
        if (!goes_on) {
          ++cuts_;
          Reset(one->client);
          Reset(one->server);
        }
        one = connections_.erase(one);
      }
    }
  }

  const SocketAddress target_;
  SocketAddress address_;
  Random random_;
  std::atomic<uint64_t> bytes_max_ = 0;
  FileDescriptor listener_;
  std::list<Connection> connections_;
  std::atomic<int> cuts_ = 0;
  std::array<std::atomic<bool>, 2> holds_{};
  std::atomic<bool> stop_ = false, cut_all_ = false, refuse_ = false;
  std::thread thread_;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_CUTTING_PROXY_H_
