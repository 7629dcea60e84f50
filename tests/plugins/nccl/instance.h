// The plugin as a test has it: loaded from a copy, so that each test has settings of its own, and
// connections made as NCCL's service threads make them.
#ifndef WEFT_TESTS_PLUGINS_NCCL_INSTANCE_H_
#define WEFT_TESTS_PLUGINS_NCCL_INSTANCE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/nccl_harness/net_api.h"

namespace weft::harness {

using nccl::abi::Result;
using Environment = std::vector<std::pair<std::string, std::string>>;

// One instance of the plugin, as another process would have it.
class Instance {
 public:
  // `library` is copied; with `neighbours` the libweft-*.so beside it as well.
  explicit Instance(const Environment& environment = {}, const std::string& library = WEFT_PLUGIN,
                    bool neighbours = false)
      : watch_(page_, absl::Seconds(60)) {
    static int number = 0;
    // So deep that nothing is in ../lib and ../../lib, where the plugin looks for its neighbours.
    root_ = std::filesystem::path(testing::TempDir()) /
            absl::StrCat("weft-plugin-", getpid(), "-", ++number);
    const std::filesystem::path folder = root_ / "a/b/c", from(library);
    std::filesystem::create_directories(folder);
    std::filesystem::copy(from, folder);
    for (const auto& beside : std::filesystem::directory_iterator(from.parent_path())) {
      const std::string name = beside.path().filename().string();
      if (neighbours && absl::StartsWith(name, "libweft-") && absl::EndsWith(name, ".so")) {
        std::filesystem::copy(beside.path(), folder);
      }
    }
    path_ = folder / from.filename();
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    auto loaded = Library::Load(path_.string());
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    library_ = std::make_unique<Library>(*std::move(loaded));
    api_ = library_->Open(11, watch_);
    LastWarning();
    init_ = api_->Init(1, &context_);
    warning_ = LastWarning();
    for (const auto& [name, value] : environment) unsetenv(name.c_str());
  }
  ~Instance() {
    for (auto close = closers_.rbegin(); close != closers_.rend(); ++close) (*close)();
    if (init_ == nccl::abi::kSuccess) api_->Finalize(context_);
    std::filesystem::remove_all(root_);
  }

  // The only communicator ends, and another begins.
  void BeginAnew() {
    api_->Finalize(std::exchange(context_, nullptr));
    init_ = api_->Init(1, &context_);
  }

  NetApi& api() { return *api_; }
  Library& library() { return *library_; }
  void* context() { return context_; }
  Result init() const { return init_; }
  const std::string& warning() const { return warning_; }
  std::filesystem::path folder() const { return path_.parent_path(); }
  void AtEnd(std::function<void()> close) { closers_.push_back(std::move(close)); }

 private:
  CallPage page_;
  Watch watch_;
  std::filesystem::path root_, path_;
  std::unique_ptr<Library> library_;
  std::unique_ptr<NetApi> api_;
  void* context_ = nullptr;
  Result init_;
  std::string warning_;
  std::vector<std::function<void()>> closers_;
};

using HandleBytes = std::array<char, nccl::abi::kHandleBytes>;

struct Listening {
  void* comm = nullptr;
  HandleBytes handle{};
};

inline Listening Listen(Instance& instance, int device = 0) {
  Listening out;
  EXPECT_EQ(instance.api().Listen(instance.context(), device, out.handle.data(), &out.comm),
            nccl::abi::kSuccess);
  EXPECT_NE(out.comm, nullptr);
  instance.AtEnd([&instance, comm = out.comm] { instance.api().CloseListen(comm); });
  return out;
}

struct Outcome {
  void* comm = nullptr;
  Result result = nccl::abi::kSuccess;
  std::string warning;
  bool ended() const { return comm != nullptr || result != nccl::abi::kSuccess; }
};

// Calls both in turn, as two service threads do, until both have ended; `accepting` may be null.
inline std::pair<Outcome, Outcome> Meet(Instance& connecting, HandleBytes& handle,
                                        Instance* accepting, Listening* listening, int device = 0) {
  Outcome send, receive;
  for (int64_t i = 0; i < 100'000'000; ++i) {
    if (!send.ended()) {
      send.result = connecting.api().Connect(connecting.context(), device, handle.data(),
                                             &send.comm, nullptr);
      send.warning = LastWarning();
    }
    if (accepting != nullptr && !receive.ended()) {
      receive.result = accepting->api().Accept(listening->comm, &receive.comm, nullptr);
      receive.warning = LastWarning();
    }
    bool failed = send.result != nccl::abi::kSuccess || receive.result != nccl::abi::kSuccess;
    if (send.ended() && (accepting == nullptr || receive.ended())) break;
    if (failed && accepting == nullptr) break;
  }
  if (send.comm != nullptr) {
    connecting.AtEnd([&connecting, comm = send.comm] { connecting.api().CloseSend(comm); });
  }
  if (receive.comm != nullptr) {
    accepting->AtEnd([accepting, comm = receive.comm] { accepting->api().CloseReceive(comm); });
  }
  return {send, receive};
}

}  // namespace weft::harness

#endif  // WEFT_TESTS_PLUGINS_NCCL_INSTANCE_H_
