#include "tests/bench/init/floor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/open_files.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/server/store_service.h"
#include "tools/init/measure.h"
#include "tools/init/process.h"
#include "tools/init/shared.h"
#include "tools/init/simulated_rank.h"

namespace weft::init {
namespace {

constexpr size_t kMessage = 160;  // about a request's bytes; the first says whose it is
constexpr size_t kPiece = size_t{64} << 10;
constexpr int kSpareDescriptors = 256;
// A process dials so many at once, as the store's do: a full backlog costs a second.
constexpr size_t kWindow = 256;
constexpr char kAnswers = 64;  // added to a first message that is to be answered at once

struct Marks {
  int64_t connected = 0;
  int64_t exchanged = 0;
};

absl::Status SendMessage(int fd, char first) {
  std::array<char, kMessage> message{};
  message[0] = first;
  ssize_t sent = send(fd, message.data(), message.size(), MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(message.size())) return absl::OkStatus();
  return ErrnoStatus(errno, "send a message");
}

absl::StatusOr<char> ReceiveMessage(int fd) {
  std::array<char, kMessage> message{};
  ssize_t got = recv(fd, message.data(), message.size(), MSG_WAITALL);
  if (got == static_cast<ssize_t>(message.size())) return message[0];
  return ErrnoStatus(errno, "receive a message");
}

absl::StatusOr<FileDescriptor> Dial(const SocketAddress& server, const SocketAddress* source) {
  FileDescriptor socket(::socket(server.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return ErrnoStatus(errno, "make a socket");
  if (source != nullptr) {
    int one = 1;
    setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
    if (bind(socket.get(), source->get(), source->size()) != 0) return ErrnoStatus(errno, "bind");
  }
  if (connect(socket.get(), server.get(), server.size()) != 0) return ErrnoStatus(errno, "connect");
  return socket;
}

// Ranks or hosts of one process, one after the other.
class FloorClients {
 public:
  FloorClients(const Options& options, int process, int processes, size_t bytes, Marks& marks)
      : options_(options),
        process_(process),
        processes_(processes),
        data_(bytes, 'x'),
        marks_(marks) {}

  absl::Status Run(const std::string& address) {
    WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort(address));
    for (int i = 0; i < options_.sources; ++i) {
      WEFT_ASSIGN_OR_RETURN(auto source, ResolveHostPort(absl::StrCat("127.0.0.", 2 + i, ":0")));
      sources_.push_back(source[0]);
    }
    WEFT_RETURN_IF_ERROR(options_.relay ? Hosts(addresses[0]) : Ranks(addresses[0]));
    marks_.connected = SystemClock::Nanoseconds();
    for (const FileDescriptor& up : up_) {
      WEFT_RETURN_IF_ERROR(options_.relay ? IntoFile(up.get()) : Read(up.get(), nullptr));
    }
    marks_.exchanged = SystemClock::Nanoseconds();
    return absl::OkStatus();
  }

 private:
  int Share(int of, int process) const {
    return static_cast<int>(int64_t{of} * process / processes_);
  }

  absl::Status DialUp(const SocketAddress& server) {
    WEFT_ASSIGN_OR_RETURN(auto up, Dial(server, &sources_[up_.size() % sources_.size()]));
    up_.push_back(std::move(up));
    return absl::OkStatus();
  }

  absl::Status Ranks(const SocketAddress& server) {
    int count = Share(options_.ranks, process_ + 1) - Share(options_.ranks, process_);
    for (int i = 0; i < count; ++i) {
      WEFT_RETURN_IF_ERROR(DialUp(server));
      WEFT_RETURN_IF_ERROR(Introduce());
    }
    for (const FileDescriptor& up : up_) WEFT_RETURN_IF_ERROR(ReceiveMessage(up.get()).status());
    return absl::OkStatus();
  }

  // The first message of the last connection.
  absl::Status Introduce() {
    bool pauses = up_.size() % kWindow == 0;
    auto who = static_cast<char>(process_ + (pauses ? kAnswers : 0));
    WEFT_RETURN_IF_ERROR(SendMessage(up_.back().get(), who));
    return pauses ? ReceiveMessage(up_.back().get()).status() : absl::OkStatus();
  }

  absl::Status Hosts(const SocketAddress& server) {
    std::vector<FileDescriptor> listeners;
    std::vector<std::pair<FileDescriptor, FileDescriptor>> ranks;  // its end, the relay's
    for (int host = Share(options_.hosts, process_); host < Share(options_.hosts, process_ + 1);
         ++host) {
      WEFT_ASSIGN_OR_RETURN(auto own,
                            ResolveHostPort(absl::StrCat("unix:weft-floor-", getpid(), "-", host)));
      WEFT_ASSIGN_OR_RETURN(auto listener, collectives::ListenForStore(own[0]));
      WEFT_RETURN_IF_ERROR(DialUp(server));
      for (int i = 0; i < options_.ranks_per_host(); ++i) {
        WEFT_ASSIGN_OR_RETURN(auto rank, Dial(own[0], nullptr));
        WEFT_RETURN_IF_ERROR(SendMessage(rank.get(), 0));
        FileDescriptor end(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!end) return ErrnoStatus(errno, "accept");
        WEFT_RETURN_IF_ERROR(ReceiveMessage(end.get()).status());
        WEFT_RETURN_IF_ERROR(SendMessage(end.get(), 0));
        WEFT_RETURN_IF_ERROR(ReceiveMessage(rank.get()).status());
        ranks.emplace_back(std::move(rank), std::move(end));
      }
      WEFT_RETURN_IF_ERROR(Introduce());
      listeners.push_back(std::move(listener));
    }
    for (const FileDescriptor& up : up_) WEFT_RETURN_IF_ERROR(ReceiveMessage(up.get()).status());
    for (const auto& [rank, end] : ranks) {
      WEFT_RETURN_IF_ERROR(SendMessage(end.get(), 0));
      WEFT_RETURN_IF_ERROR(ReceiveMessage(rank.get()).status());
    }
    return absl::OkStatus();
  }

  // Into `file`, or nowhere.
  absl::Status Read(int fd, const FileDescriptor* file) {
    std::array<char, kPiece> piece;
    for (size_t at = 0; at < data_.size();) {
      ssize_t got = recv(fd, piece.data(), std::min(piece.size(), data_.size() - at), 0);
      if (got <= 0) return ErrnoStatus(errno, "receive the exchange");
      auto size = static_cast<size_t>(got);
      if (file != nullptr &&
          pwrite(file->get(), piece.data(), size, static_cast<off_t>(at)) != got) {
        return ErrnoStatus(errno, "write a memory file");
      }
      at += size;
    }
    return absl::OkStatus();
  }

  absl::Status IntoFile(int fd) {
    FileDescriptor file(memfd_create("weft-floor", MFD_CLOEXEC));
    if (!file) return ErrnoStatus(errno, "make a memory file");
    WEFT_RETURN_IF_ERROR(Read(fd, &file));
    void* memory = mmap(nullptr, data_.size(), PROT_READ, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, "map a memory file");
    bool same = std::memcmp(memory, data_.data(), data_.size()) == 0;
    munmap(memory, data_.size());
    return same ? absl::OkStatus() : absl::DataLossError("other bytes came than were sent");
  }

  const Options& options_;
  const int process_;
  const int processes_;
  const std::string data_;
  Marks& marks_;
  std::vector<SocketAddress> sources_;
  std::vector<FileDescriptor> up_;
};

// Serves them: one thread, as a store's.
class FloorServer {
 public:
  FloorServer(FileDescriptor listener, int connections, int processes, size_t bytes)
      : listener_(std::move(listener)),
        connections_(connections),
        data_(bytes, 'x'),
        queues_(static_cast<size_t>(processes)) {}

  absl::Status Run() {
    for (int i = 0; i < connections_; ++i) {
      pollfd waits{listener_.get(), POLLIN, 0};
      FileDescriptor next(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      while (!next && errno == EAGAIN && poll(&waits, 1, 60'000) > 0) {
        next = FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      }
      if (!next) return ErrnoStatus(errno, "accept");
      WEFT_ASSIGN_OR_RETURN(char process, ReceiveMessage(next.get()));
      if (process >= kAnswers) WEFT_RETURN_IF_ERROR(SendMessage(next.get(), 0));
      queues_.at(static_cast<size_t>(process % kAnswers)).push_back(std::move(next));
    }
    for (const auto& queue : queues_) {
      for (const auto& one : queue) WEFT_RETURN_IF_ERROR(SendMessage(one.get(), 0));
    }
    return SendBytes();
  }

 private:
  // To the processes at once, to each one's connections in order.
  absl::Status SendBytes() {
    std::vector<std::pair<size_t, size_t>> at(queues_.size());  // connection, byte
    while (true) {
      std::vector<pollfd> waits;
      for (size_t q = 0; q < queues_.size(); ++q) {
        bool over = at[q].first == queues_[q].size();
        waits.push_back({over ? -1 : queues_[q][at[q].first].get(), POLLOUT, 0});
      }
      bool over = std::all_of(waits.begin(), waits.end(), [](auto& w) { return w.fd < 0; });
      if (over) return absl::OkStatus();
      if (poll(waits.data(), waits.size(), 60'000) <= 0) return ErrnoStatus(errno, "poll");
      for (size_t q = 0; q < waits.size(); ++q) {
        if (waits[q].fd < 0 || waits[q].revents == 0) continue;
        auto& [connection, byte] = at[q];
        ssize_t sent = send(waits[q].fd, data_.data() + byte, data_.size() - byte,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN) return ErrnoStatus(errno, "send the exchange");
        byte += static_cast<size_t>(std::max<ssize_t>(sent, 0));
        if (byte < data_.size()) continue;
        ++connection;
        byte = 0;
      }
    }
  }

  FileDescriptor listener_;
  const int connections_;
  const std::string data_;
  std::vector<std::vector<FileDescriptor>> queues_;  // connections, by process
};

int ProcessesFor(const Options& options) {
  int64_t limit = RaiseOpenFilesLimit() - kSpareDescriptors;
  int64_t needed =
      options.relay ? int64_t{options.hosts} * (2 + 2 * options.ranks_per_host()) : options.ranks;
  return static_cast<int>(std::max<int64_t>(2, (needed + limit - 1) / std::max<int64_t>(limit, 1)));
}

}  // namespace

absl::StatusOr<FloorMeasurement> MeasureFloor(const Options& options) {
  FloorMeasurement m;
  m.ranks = options.ranks;
  m.hosts = options.hosts;
  m.processes = ProcessesFor(options);
  m.exchange_bytes = MeanExchangeBytes(options);
  auto bytes = static_cast<size_t>(m.exchange_bytes);
  WEFT_ASSIGN_OR_RETURN(SharedArray<Marks> marks, MapArray<Marks>(m.processes));
  Processes processes;
  for (int i = 0; i < m.processes; ++i) {
    auto body = [&, i](int socket) {
      FloorClients clients(options, i, m.processes, bytes, marks[i]);
      RunWhenTold(socket, [&](const std::string& at) { return clients.Run(at); });
    };
    WEFT_ASSIGN_OR_RETURN(auto process, Process::Start(body));
    processes.push_back(std::move(process));
  }
  WEFT_ASSIGN_OR_RETURN(auto addresses, ResolveHostPort("127.0.0.1:0"));
  WEFT_ASSIGN_OR_RETURN(FileDescriptor listener, collectives::ListenForStore(addresses[0]));
  FloorServer server(std::move(listener), options.relay ? options.hosts : options.ranks,
                     m.processes, bytes);
  absl::Status served;
  std::thread thread([&] { served = server.Run(); });
  int64_t begin = SystemClock::Nanoseconds();
  for (const auto& process : processes) process->Tell(addresses[0].ToString());
  absl::Status status = AwaitAll(processes, "ok", 2 * options.timeout, [] {});
  processes.clear();  // their ends close what the server might wait for
  thread.join();
  Marks last;
  for (int i = 0; i < m.processes; ++i) {
    last.connected = std::max(last.connected, marks[i].connected);
    last.exchanged = std::max(last.exchanged, marks[i].exchanged);
  }
  WEFT_RETURN_IF_ERROR(status);
  WEFT_RETURN_IF_ERROR(served);
  m.connect = static_cast<double>(last.connected - begin) * 1e-9;
  m.exchange = static_cast<double>(last.exchanged - last.connected) * 1e-9;
  return m;
}

}  // namespace weft::init
