// A job whose ranks are processes, which may be killed and stopped; its store is in this process.
#ifndef WEFT_TESTS_COLLECTIVES_PROCESSES_H_
#define WEFT_TESTS_COLLECTIVES_PROCESSES_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/server/store_server.h"
#include "tests/collectives/job.h"

namespace weft::collectives {

// What a rank's process does: exit status 0 means that its checks held.
using RankBody = std::function<bool(const std::shared_ptr<Endpoint>&)>;

inline bool RunAsProcess(int rank, int size, const std::string& address, const SettingPairs& pairs,
                         const RankBody& body) {
  StoreClientOptions client;
  client.address = address;
  client.name = absl::StrCat("rank ", rank);
  auto store = StoreClient::Connect(client);
  if (!store.ok()) return false;
  EndpointOptions options;
  options.rank = Rank(rank);
  options.world_size = size;
  options.store = store->get();
  options.settings = SettingsOf(pairs);
  auto endpoint = Endpoint::Create(std::move(options));
  if (!endpoint.ok()) {
    absl::FPrintF(stderr, "rank %d: %s\n", rank, endpoint.status().ToString());
    return false;
  }
  return body(*endpoint);
}

class Processes {
 public:
  Processes(int size, const SettingPairs& pairs, const RankBody& body) {
    // The server's thread must not be forked: children learn its address through a pipe.
    std::array<int, 2> tell;
    EXPECT_EQ(pipe(tell.data()), 0);
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives a test that is cut off
        close(tell[1]);
        char address[64] = {};
        const bool told = read(tell[0], address, sizeof(address)) == sizeof(address);
        _exit(told && RunAsProcess(rank, size, address, pairs, body) ? 0 : 1);
      }
      children_.push_back(child);
    }
    server_ = *StoreServer::Start({});
    std::string address = server_->address();
    address.resize(64);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(write(tell[1], address.data(), address.size()), 64);
    }
    close(tell[0]);
    close(tell[1]);
  }
  ~Processes() {
    for (pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL), waitpid(child, nullptr, 0);
    }
  }
  void Signal(int rank, int signal) { kill(children_[static_cast<size_t>(rank)], signal); }
  void StopStore() { server_.reset(); }
  // The wait status; -1 if it has not ended in time.
  int Wait(int rank, absl::Duration limit) {
    pid_t& child = children_[static_cast<size_t>(rank)];
    const absl::Time end = absl::Now() + limit;
    while (absl::Now() < end) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) == child) {
        child = 0;
        return status;
      }
      poll(nullptr, 0, 2);
    }
    return -1;
  }

 private:
  std::vector<pid_t> children_;
  std::unique_ptr<StoreServer> server_;
};

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_PROCESSES_H_
