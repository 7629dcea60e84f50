// A member of an etcd for tests of its callers.
#ifndef WEFT_TESTS_TOOLS_DRIVER_ETCD_MEMBER_H_
#define WEFT_TESTS_TOOLS_DRIVER_ETCD_MEMBER_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/file_descriptor.h"
#include "base/socket_address.h"

namespace weft::driver {

// A member that answers each request with the next of these, and closes.
class Member {
 public:
  explicit Member(std::vector<std::string> answers) : answers_(std::move(answers)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_.get(), 8), 0);
    thread_ = std::thread([this] {
      for (const std::string& answer : answers_) {
        const FileDescriptor caller(accept(listener_.get(), nullptr, nullptr));
        std::string request;
        std::array<char, 4096> bytes;
        while (!absl::StrContains(request, "\r\n\r\n{")) {
          const ssize_t got = read(caller.get(), bytes.data(), bytes.size());
          if (got <= 0) break;
          request.append(bytes.data(), static_cast<size_t>(got));
        }
        (void)!write(caller.get(), answer.data(), answer.size());
        ++answered_;
      }
    });
  }
  ~Member() {
    shutdown(listener_.get(), SHUT_RDWR);  // accept() fails from here
    thread_.join();
  }
  std::string address() const { return LocalAddress(listener_.get()).ToString(); }
  int answered() const { return answered_; }

 private:
  const std::vector<std::string> answers_;
  const FileDescriptor listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::atomic<int> answered_{0};
  std::thread thread_;
};

}  // namespace weft::driver

#endif  // WEFT_TESTS_TOOLS_DRIVER_ETCD_MEMBER_H_
