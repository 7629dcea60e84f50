// What the harness does not ask of every plugin: this one's errors, and what it says. Each test
// loads a copy of the library, so that it has settings of its own.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "plugins/nccl/abi/profiler.h"
#include "tests/plugins/nccl/instance.h"
#include "tests/scratch_folder.h"
#include "tools/nccl_harness/net_api.h"

namespace weft::harness {
namespace {

using nccl::abi::Result;
using ::testing::HasSubstr;

TEST(NcclPlugin, CarriesAMessageInEveryVersion) {
  Instance instance;
  EXPECT_THAT(instance.library().versions(), testing::ElementsAre(7, 8, 9, 10, 11, 12));
  CallPage page;
  Watch watch(page, absl::Seconds(60));
  for (int version : instance.library().versions()) {
    SCOPED_TRACE(version);
    std::unique_ptr<NetApi> api = instance.library().Open(version, watch);
    EXPECT_STREQ(api->name(), "weft");
    EXPECT_THAT(api->MissingFunctions(), testing::IsEmpty());
    void *context = nullptr, *listen = nullptr, *send = nullptr, *receive = nullptr;
    ASSERT_EQ(api->Init(7, &context), nccl::abi::kSuccess);
    HandleBytes handle{};
    ASSERT_EQ(api->Listen(context, 0, handle.data(), &listen), nccl::abi::kSuccess);
    while (send == nullptr || receive == nullptr) {
      if (send == nullptr) {
        ASSERT_EQ(api->Connect(context, 0, handle.data(), &send, nullptr), nccl::abi::kSuccess);
      }
      if (receive == nullptr) {
        ASSERT_EQ(api->Accept(listen, &receive, nullptr), nccl::abi::kSuccess);
      }
    }
    EXPECT_EQ(api->CloseListen(listen), nccl::abi::kSuccess);
    std::string from = "over and over", to(64, '.');
    void *send_memory = nullptr, *receive_memory = nullptr;
    ASSERT_EQ(api->Register(send, from.data(), from.size(), &send_memory), nccl::abi::kSuccess);
    ASSERT_EQ(api->Register(receive, to.data(), to.size(), &receive_memory), nccl::abi::kSuccess);
    Received what{{to.data()}, {receive_memory}, {to.size()}, {3}};
    // NCCL's value. NOLINTNEXTLINE(performance-no-int-to-ptr)
    void* const hint = reinterpret_cast<void*>(nccl::abi::kOptionalReceiveCompletion);
    void *receiving = hint, *sending = nullptr;
    ASSERT_EQ(api->Receive(receive, what, &receiving), nccl::abi::kSuccess);
    ASSERT_EQ(api->Send(send, from.data(), from.size(), 3, send_memory, &sending),
              nccl::abi::kSuccess);
    ASSERT_NE(receiving, hint);
    int done = 0, size = 0;
    while (done == 0) ASSERT_EQ(api->Test(sending, &done, &size), nccl::abi::kSuccess);
    done = 0, size = 0;
    while (done == 0) ASSERT_EQ(api->Test(receiving, &done, &size), nccl::abi::kSuccess);
    EXPECT_EQ(to.substr(0, static_cast<size_t>(size)), from);
    EXPECT_EQ(api->Deregister(send, send_memory), nccl::abi::kSuccess);
    EXPECT_EQ(api->Deregister(receive, receive_memory), nccl::abi::kSuccess);
    EXPECT_EQ(api->CloseSend(send), nccl::abi::kSuccess);
    EXPECT_EQ(api->CloseReceive(receive), nccl::abi::kSuccess);
    EXPECT_EQ(api->Finalize(context), nccl::abi::kSuccess);
  }
}

TEST(NcclPlugin, ABadSettingFailsInitAndIsNamedWithWhatWouldBeRight) {
  Instance many(Environment{{"WEFT_TCP_SOCKETS", "many"}});
  EXPECT_EQ(many.init(), nccl::abi::kInvalidArgument);
  EXPECT_THAT(many.warning(), HasSubstr("tcp.sockets"));
  EXPECT_THAT(many.warning(), HasSubstr("many"));
  Instance shm(Environment{{"WEFT_TRANSPORT", "shm"}});
  EXPECT_EQ(shm.init(), nccl::abi::kInvalidArgument);
  EXPECT_THAT(shm.warning(), HasSubstr("WEFT_TRANSPORT=shm"));
  Instance pairs(Environment{{"WEFT_TRANSPORT", "multipath"}, {"WEFT_MULTIPATH_WIRE", "rc"}});
  EXPECT_EQ(pairs.init(), nccl::abi::kInvalidArgument);
  EXPECT_THAT(pairs.warning(), HasSubstr("WEFT_MULTIPATH_WIRE=rc"));
  EXPECT_THAT(pairs.warning(), HasSubstr("goes over udp"));
  Instance threads(
      Environment{{"NCCL_SOCKET_NTHREADS", "16"}, {"NCCL_SOCKET_NSOCKS_PERTHREAD", "8"}});
  EXPECT_EQ(threads.init(), nccl::abi::kInvalidArgument);
  EXPECT_THAT(threads.warning(), HasSubstr("128"));
  Instance family(Environment{{"NCCL_SOCKET_FAMILY", "IPv4"}});
  EXPECT_EQ(family.init(), nccl::abi::kInvalidArgument);
  EXPECT_THAT(family.warning(), HasSubstr("AF_INET6"));
}

TEST(NcclPlugin, AnInterfaceThatIsNotThereFailsInitWithTheListOfThoseThatAre) {
  Instance instance(Environment{{"WEFT_TCP_INTERFACE", "=nosuch0"}});
  EXPECT_EQ(instance.init(), nccl::abi::kInvalidUsage);
  EXPECT_THAT(instance.warning(), HasSubstr("nosuch0"));
  EXPECT_THAT(instance.warning(), HasSubstr("lo (ipv4)"));
}

TEST(NcclPlugin, NcclsNumbersOfThreadsAndSocketsAreTaken) {
  Instance instance(
      Environment{{"NCCL_SOCKET_NTHREADS", "2"}, {"NCCL_SOCKET_NSOCKS_PERTHREAD", "3"}});
  ASSERT_EQ(instance.init(), nccl::abi::kSuccess);
  Listening listening = Listen(instance);
  auto [send, receive] = Meet(instance, listening.handle, &instance, &listening);
  EXPECT_NE(send.comm, nullptr);
  EXPECT_NE(receive.comm, nullptr);
}

TEST(NcclPlugin, TheLogSaysWhatSettingUpConnectionsTookByPhase) {
  Instance instance;
  SetLogVerbose(true);
  testing::internal::CaptureStderr();
  {
    Listening listening = Listen(instance);
    auto [send, receive] = Meet(instance, listening.handle, &instance, &listening);
    ASSERT_NE(send.comm, nullptr) << send.warning;
    void* context = nullptr;
    ASSERT_EQ(instance.api().Init(2, &context), nccl::abi::kSuccess);
    instance.api().Finalize(context);
  }
  SetLogVerbose(false);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("2 ends of connections set up within"));
  for (const char* phase : {"listen 1 x ", "waiting 1 x ", "handshake 1 x ", "greeting 2 x "}) {
    EXPECT_THAT(said, HasSubstr(phase));
  }
}

TEST(NcclPlugin, AHandleOfAnotherPluginIsRefusedAtOnce) {
  Instance instance;
  HandleBytes handle;
  handle.fill('?');  // to its end, where ours keep the number of an attempt
  std::strcpy(handle.data(), "somebody else's");
  auto [send, none] = Meet(instance, handle, nullptr, nullptr);
  EXPECT_EQ(send.result, nccl::abi::kInvalidUsage);
  EXPECT_THAT(send.warning, HasSubstr("not one of Weft's"));
  EXPECT_THAT(send.warning, HasSubstr("NCCL_NET_PLUGIN=weft"));
}

TEST(NcclPlugin, AHandleOfAnotherProtocolVersionIsRefusedWithBothVersions) {
  Instance instance;
  Listening listening = Listen(instance);
  listening.handle[4] = 99;
  listening.handle.back() = 1;
  auto [send, none] = Meet(instance, listening.handle, nullptr, nullptr);
  EXPECT_EQ(send.result, nccl::abi::kInvalidUsage);
  EXPECT_THAT(send.warning, HasSubstr("version 99"));
  EXPECT_THAT(send.warning, HasSubstr("version 1"));
}

TEST(NcclPlugin, AHandleWithAWrongSecretIsTurnedAway) {
  Instance instance;
  Listening listening = Listen(instance);
  HandleBytes forged = listening.handle;
  forged[20] ^= 1;
  Outcome send;
  while (!send.ended()) {  // bounded by the connect timeout
    send.result = instance.api().Connect(instance.context(), 0, forged.data(), &send.comm, nullptr);
    send.warning = LastWarning();
    void* nobody = nullptr;
    ASSERT_EQ(instance.api().Accept(listening.comm, &nobody, nullptr), nccl::abi::kSuccess);
    ASSERT_EQ(nobody, nullptr);
  }
  EXPECT_EQ(send.result, nccl::abi::kRemoteError);
  EXPECT_THAT(send.warning, HasSubstr("secret"));
}

TEST(NcclPlugin, ASecretThatIsNoneFailsInitWithoutBeingShown) {
  for (const std::string& wrong : {std::string("swordfish"), std::string(64, '0')}) {
    Instance instance(Environment{{"WEFT_JOB_SECRET", wrong}});
    EXPECT_EQ(instance.init(), nccl::abi::kInvalidArgument);
    EXPECT_THAT(instance.warning(),
                testing::AllOf(HasSubstr("WEFT_JOB_SECRET"), HasSubstr("64 hexadecimal digits"),
                               testing::Not(HasSubstr(wrong))));
  }
}

TEST(NcclPlugin, PeersOfDifferentJobsFailOnBothSidesAndNameBoth) {
  Instance one(Environment{{"WEFT_JOB_SECRET", std::string(64, '1')}});
  Instance other(Environment{{"WEFT_JOB_SECRET", std::string(64, '2')}});
  Listening listening = Listen(other);
  auto [send, receive] = Meet(one, listening.handle, &other, &listening);
  EXPECT_EQ(send.result, nccl::abi::kInvalidUsage);
  EXPECT_EQ(receive.result, nccl::abi::kInvalidUsage);
  for (const std::string& warning : {send.warning, receive.warning}) {
    EXPECT_THAT(warning, HasSubstr("WEFT_JOB_SECRET"));
    EXPECT_THAT(warning, HasSubstr(absl::StrCat("pid ", getpid(), ", lo")));
  }
}

TEST(NcclPlugin, PeersWithDifferentTransportsFailOnBothSidesAndNameBoth) {
  for (const auto& [first, second] : {std::pair{"tcp", "multipath"}, {"multipath", "tcp"}}) {
    SCOPED_TRACE(first);
    Instance one(Environment{{"WEFT_TRANSPORT", first}});
    Instance other(Environment{{"WEFT_TRANSPORT", second}});
    Listening listening = Listen(other);
    auto [send, receive] = Meet(one, listening.handle, &other, &listening);
    EXPECT_EQ(send.result, nccl::abi::kInvalidUsage);
    EXPECT_EQ(receive.result, nccl::abi::kInvalidUsage);
    for (const std::string& warning : {send.warning, receive.warning}) {
      EXPECT_THAT(warning, HasSubstr(first));
      EXPECT_THAT(warning, HasSubstr(second));
      EXPECT_THAT(warning, HasSubstr("WEFT_TRANSPORT"));
    }
  }
}

TEST(NcclPlugin, InterfacesAreNotMerged) {
  for (const char* transport : {"tcp", "multipath"}) {
    Instance instance(Environment{{"WEFT_TRANSPORT", transport}});
    int device = -1, count = 0;
    EXPECT_NE(instance.api().MakeVirtualDevice(&device, {0, 0}), nccl::abi::kSuccess);
    EXPECT_EQ(instance.api().MakeVirtualDevice(&device, {0}), nccl::abi::kSuccess);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(instance.api().Devices(&count), nccl::abi::kSuccess);
    EXPECT_EQ(count, 1);
  }
}

TEST(NcclPlugin, GarbageOnTheListeningSocketDisturbsNobody) {
  Instance instance;
  Listening listening = Listen(instance);
  uint16_t port = 0;
  std::memcpy(&port, listening.handle.data() + 42, sizeof(port));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  std::vector<int> unauthenticated;
  for (int i = 0; i < 8; ++i) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    std::string garbage(512, static_cast<char>(i * 37));
    send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
    unauthenticated.push_back(fd);
  }
  auto [send, receive] = Meet(instance, listening.handle, &instance, &listening);
  EXPECT_NE(send.comm, nullptr) << send.warning;
  EXPECT_NE(receive.comm, nullptr) << receive.warning;
  for (int fd : unauthenticated) close(fd);
}

TEST(NcclPlugin, AListenerThatHasGoneIsNamedWithinTheConnectTimeout) {
  Instance instance(Environment{{"WEFT_TRANSPORT_CONNECT_TIMEOUT", "300ms"}});
  HandleBytes handle{};
  void* listen = nullptr;
  ASSERT_EQ(instance.api().Listen(instance.context(), 0, handle.data(), &listen),
            nccl::abi::kSuccess);
  instance.api().CloseListen(listen);
  auto [send, none] = Meet(instance, handle, nullptr, nullptr);
  EXPECT_EQ(send.result, nccl::abi::kRemoteError);
  EXPECT_THAT(send.warning, HasSubstr("refused"));
  EXPECT_THAT(send.warning, HasSubstr(absl::StrCat("(pid ", getpid(), ", lo)")));
}

TEST(NcclPlugin, NobodyWhoConnectsIsAnErrorOfAcceptAfterItsTime) {
  Instance instance(Environment{{"WEFT_TRANSPORT_CONNECT_TIMEOUT", "100ms"}});
  Listening listening = Listen(instance);
  Outcome receive;
  while (!receive.ended()) {
    receive.result = instance.api().Accept(listening.comm, &receive.comm, nullptr);
    receive.warning = LastWarning();
  }
  EXPECT_EQ(receive.result, nccl::abi::kRemoteError);
  EXPECT_THAT(receive.warning, HasSubstr("nobody has connected"));
}

int SocketsOpen() {
  int out = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;  // meanwhile
    const std::filesystem::path what = std::filesystem::read_symlink(one.path(), closed);
    if (absl::StartsWith(what.string(), "socket:")) ++out;
  }
  return out;
}

TEST(NcclPlugin, APeerThatNoDescriptorIsLeftForIsAnErrorOfAccept) {
  Instance instance(Environment{{"WEFT_TCP_SOCKETS", "1"}});
  Listening listening = Listen(instance);
  Outcome send, receive;
  const auto connect = [&] {
    return instance.api().Connect(instance.context(), 0, listening.handle.data(), &send.comm,
                                  nullptr);
  };
  const int before = SocketsOpen();
  ASSERT_EQ(connect(), nccl::abi::kSuccess);
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  // One at either end: the plugin's own thread takes the connection, and accept what it becomes.
  while (SocketsOpen() < before + 2 && absl::Now() < give_up) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(SocketsOpen(), before + 2);
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  const int next = dup(0);
  close(next);
  const rlimit none_left{static_cast<rlim_t>(next), usual.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none_left), 0);
  while (!receive.ended() && absl::Now() < give_up) {
    connect();
    LastWarning();
    receive.result = instance.api().Accept(listening.comm, &receive.comm, nullptr);
    receive.warning = LastWarning();
  }
  setrlimit(RLIMIT_NOFILE, &usual);
  EXPECT_EQ(receive.result, nccl::abi::kSystemError);
  EXPECT_THAT(receive.warning, HasSubstr("ulimit -n"));
  EXPECT_THAT(receive.warning, testing::Not(HasSubstr("WEFT_TRANSPORT")));
}

TEST(NcclPlugin, WhatGoesBeyondRegisteredMemoryIsRefused) {
  Instance instance;
  Listening listening = Listen(instance);
  auto [send, receive] = Meet(instance, listening.handle, &instance, &listening);
  std::array<char, 64> buffer{};
  void *memory = nullptr, *request = nullptr;
  ASSERT_EQ(instance.api().Register(send.comm, buffer.data(), 32, &memory), nccl::abi::kSuccess);
  EXPECT_EQ(instance.api().Send(send.comm, buffer.data() + 8, 32, 0, memory, &request),
            nccl::abi::kInvalidArgument);
  EXPECT_THAT(LastWarning(), HasSubstr("isend of 32 bytes"));
  instance.api().Deregister(send.comm, memory);
}

// test() tells sizes as ints.
TEST(NcclPlugin, AMessageWhoseSizeTestCannotTellIsRefused) {
  Instance instance;
  Listening listening = Listen(instance);
  auto [send, receive] = Meet(instance, listening.handle, &instance, &listening);
  std::array<char, 64> buffer{};  // the registered memory is not read
  const size_t size = size_t{1} << 31;
  void *memory = nullptr, *request = nullptr;
  ASSERT_EQ(instance.api().Register(send.comm, buffer.data(), size, &memory), nccl::abi::kSuccess);
  EXPECT_EQ(instance.api().Send(send.comm, buffer.data(), size, 0, memory, &request),
            nccl::abi::kInvalidArgument);
  EXPECT_EQ(request, nullptr);
  EXPECT_THAT(LastWarning(), HasSubstr("2147483648 bytes; test can tell of 2147483647 at most"));
  instance.api().Deregister(send.comm, memory);
}

// One of NCCL's threads: messages over a connection, with pauses in which the connection is idle.
[[noreturn]] void SendForEver(NetApi& api, void* send, void* receive, std::atomic<int>& rounds) {
  static std::array<char, 64> from{}, to{};
  void *from_memory = nullptr, *to_memory = nullptr;
  const auto need = [](Result result) {
    if (result != nccl::abi::kSuccess) _exit(3);
  };
  need(api.Register(send, from.data(), from.size(), &from_memory));
  need(api.Register(receive, to.data(), to.size(), &to_memory));
  for (;; ++rounds) {
    Received what{{to.data()}, {to_memory}, {to.size()}, {0}};
    void *sending = nullptr, *receiving = nullptr;
    int sent = 0, received = 0, size = 0, count = 0;
    while (receiving == nullptr) need(api.Receive(receive, what, &receiving));
    while (sending == nullptr) {
      need(api.Send(send, from.data(), from.size(), 0, from_memory, &sending));
    }
    while (sent == 0) need(api.Test(sending, &sent, &size));
    while (received == 0) need(api.Test(receiving, &received, &size));
    need(api.Devices(&count));
    absl::SleepFor(absl::Milliseconds(20));
  }
}

// A program that ends without destroying its communicators.
[[noreturn]] void ExitWhileAThreadCalls() {
  static std::atomic<int> rounds{0};
  struct Late {
    ~Late() {
      for (const int before = rounds; rounds < before + 5;) absl::SleepFor(absl::Milliseconds(1));
    }
  };
  alarm(100);                // a hang
  mallopt(M_PERTURB, 0xA5);  // what is freed does not go on looking as it did
  static const Late late;    // goes after all static objects of the plugin, which is loaded now
  static auto* const instance = new Instance;
  static Listening listening = Listen(*instance);
  const auto [send, receive] = Meet(*instance, listening.handle, instance, &listening);
  if (send.comm == nullptr || receive.comm == nullptr) _exit(2);
  std::filesystem::remove_all(instance->folder().parent_path().parent_path().parent_path());
  std::thread([send = send.comm, receive = receive.comm] {
    SendForEver(instance->api(), send, receive, rounds);
  }).detach();
  while (rounds == 0) absl::SleepFor(absl::Milliseconds(1));
  exit(0);
}

TEST(NcclPlugin, ThreadsMayCallItUntilAProcessThatExitsIsGone) {
  EXPECT_EXIT(ExitWhileAThreadCalls(), testing::ExitedWithCode(0), "");
}

TEST(NcclPlugin, HasEveryTunerAndProfiler) {
  Instance instance;
  for (int version = 2; version <= 6; ++version) {
    EXPECT_TRUE(instance.library().has(absl::StrCat("ncclTunerPlugin_v", version)));
  }
  for (int version = 1; version <= 6; ++version) {
    EXPECT_TRUE(instance.library().has(absl::StrCat("ncclProfiler_v", version)));
  }
  void* context = nullptr;
  const auto& profiler =
      *static_cast<const nccl::abi::ProfilerV5*>(instance.library().Symbol("ncclProfiler_v5"));
  ScratchFolder folder;
  setenv("WEFT_RECORDS_FOLDER", (folder / "rings").c_str(), 1);
  for (const bool off : {false, true}) {
    if (off) setenv("WEFT_NCCL_PROFILER", "off", 1);
    int mask = -1;
    EXPECT_EQ(profiler.init(&context, 1, &mask, "comm", 2, 16, 0, &HarnessLogger),
              nccl::abi::kSuccess);
    EXPECT_EQ(mask != 0, !off);
    EXPECT_EQ(context != nullptr, !off);
    EXPECT_EQ(profiler.finalize(context), nccl::abi::kSuccess);
  }
  unsetenv("WEFT_NCCL_PROFILER");
  unsetenv("WEFT_RECORDS_FOLDER");
}

TEST(NcclPlugin, NothingButNcclsSymbolsIsVisible) {
  Instance instance;
  for (const char* symbol : {"sodium_init", "randombytes_buf", "_ZN4weft15LibrarySettingsEv"}) {
    EXPECT_FALSE(instance.library().has(symbol)) << symbol;
  }
}

}  // namespace
}  // namespace weft::harness
