#include "tests/net/harness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {

absl::Time Now() { return SystemClock().Now(); }

TransportOptions OptionsFor(int rank, int world_size, const std::vector<std::string>& settings) {
  TransportOptions options;
  options.self = Rank(rank);
  options.world_size = world_size;
  for (size_t i = 0; i < options.secret.size(); ++i) options.secret[i] = static_cast<uint8_t>(i);
  WEFT_CHECK(options.settings.Set("tcp.interface", "=lo", "test").ok(), "");
  WEFT_CHECK(options.settings.Set("tcp.family", "ipv4", "test").ok(), "");
  // As over RDMA; over tcp it would not be done.
  WEFT_CHECK(options.settings.Set("ucx.rendezvous_min", "16KiB", "test").ok(), "");
  auto set = [&](const std::string& pair) {
    absl::Status status = options.settings.SetPair(pair, "test");
    WEFT_CHECK(status.ok(), status);
  };
  // Suites that are run once more, with what is off by default.
  if (const char* more = std::getenv("WEFT_TEST_SETTING"); more != nullptr) set(more);
  for (const std::string& pair : settings) set(pair);
  return options;
}

Node::Node(TransportKind kind, int rank, int world_size, std::vector<std::string> settings,
           const std::function<void(TransportOptions&)>& tweak)
    : rank_(rank) {
  TransportOptions options = OptionsFor(rank, world_size, settings);
  options.events = this;
  if (tweak) tweak(options);
  auto created = MakeTestTransport(kind, options);
  WEFT_CHECK(created.ok(), created.status());
  transport_ = std::move(*created);
}

Node::~Node() {
  links_.clear();
  transport_.reset();
}

SendLink* Node::Connect(const std::string& address, int peer) {
  auto link = transport_->Connect(address, Rank(peer), Now());
  SendLink* out = link.get();
  links_.push_back(std::move(link));
  return out;
}

void Node::Destroy(Link* link) {
  std::erase_if(accepted_, [&](const auto& entry) { return entry.second == link; });
  links_.remove_if([&](const auto& one) { return one.get() == link; });
}

void Node::OnAccepted(std::unique_ptr<ReceiveLink> link) {
  ++accepted_count;
  accepted_[link->peer().value()] = link.get();
  links_.push_back(std::move(link));
}

void Node::OnNotice(Link& link, absl::string_view bytes) {
  notices.push_back({&link, std::string(bytes)});
  if (on_notice) on_notice(link);
}

void Node::OnBroken(Link& link, const absl::Status& status) { broken.emplace_back(&link, status); }

bool DriveUntil(const std::vector<Node*>& nodes, const std::function<bool()>& condition,
                absl::Duration patience) {
  absl::Time end = Now() + patience;
  while (!condition()) {
    bool moved = false;
    for (Node* node : nodes) moved |= node->Progress();
    if (moved) continue;
    if (Now() > end) return condition();
    // Nothing to do: sleep as an owner would, so that other processes get the core.
    bool may_sleep = true;
    std::vector<pollfd> fds;
    absl::Time until = Now() + absl::Milliseconds(100);
    for (Node* node : nodes) {
      may_sleep &= node->transport().PrepareWait();
      fds.push_back({node->transport().wait_fd(), POLLIN, 0});
      until = std::min(until, node->transport().NextDeadline());
    }
    int64_t wait_ms = std::max<int64_t>(0, absl::ToInt64Milliseconds(until - Now()) + 1);
    if (may_sleep) poll(fds.data(), fds.size(), static_cast<int>(wait_ms));
    for (Node* node : nodes) node->transport().FinishWait();
  }
  return true;
}

Pair::Pair(TransportKind kind, std::vector<std::string> settings)
    : a(kind, 0, 2, settings), b(kind, 1, 2, settings) {
  send = a.Connect(b.address(), 1);
  bool up = DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr || !send->status().ok(); });
  WEFT_CHECK(up && send->status().ok(), send->status());
  receive = b.accepted(0);
}

bool Pair::Done(const std::vector<const Request*>& requests) {
  return Drive([&] {
    for (const Request* request : requests) {
      if (!request->done()) return false;
    }
    return true;
  });
}

Buffer::Buffer(Transport& transport, size_t size, size_t alignment)
    : size_(size),
      memory_(static_cast<std::byte*>(std::aligned_alloc(
                  alignment, (size + 2 * alignment - 1) / alignment * alignment)),
              [](std::byte* memory) { std::free(memory); }) {
  auto region = transport.Register(memory_.get(), size);
  WEFT_CHECK(region.ok(), region.status());
  region_ = std::move(*region);
}

std::byte PatternByte(uint64_t seed, size_t index) {
  uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15ULL + index / 8 * 0xD1342543DE82EF95ULL;
  x ^= x >> 29;
  return static_cast<std::byte>(x >> (8 * (index % 8)));
}

void Buffer::FillPattern(uint64_t seed) {
  for (size_t i = 0; i < size_; ++i) memory_[i] = PatternByte(seed, i);
}

std::string Buffer::CheckPattern(uint64_t seed, size_t bytes) const {
  for (size_t i = 0; i < bytes; ++i) {
    if (memory_[i] != PatternByte(seed, i)) {
      return absl::StrCat("byte ", i, " of ", bytes, " is ", static_cast<int>(memory_[i]),
                          " instead of ", static_cast<int>(PatternByte(seed, i)));
    }
  }
  return "";
}

void AddBytes(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  auto* to = reinterpret_cast<uint8_t*>(out);
  const auto* a = reinterpret_cast<const uint8_t*>(local);
  const auto* b = reinterpret_cast<const uint8_t*>(incoming);
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<uint8_t>(a[i] + b[i]);
}

// ---- Child processes

void Child::Channel::Say(const std::string& line) const {
  std::string text = line + "\n";
  ssize_t written = write(out, text.data(), text.size());
  (void)written;  // the other end may be dead on purpose
}

std::string Child::Channel::Hear() const {
  std::string line;
  while (true) {
    pollfd fd{in, POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(absl::ToInt64Milliseconds(kPatience))) <= 0) return "";
    char c = 0;
    if (read(in, &c, 1) != 1) return "";
    if (c == '\n') return line;
    line += c;
  }
}

Child::Child(const std::function<int(Channel&)>& body) {
  int down[2], up[2];
  WEFT_CHECK(pipe2(down, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0, "errno=" << errno);
  pid_ = fork();
  WEFT_CHECK(pid_ >= 0, "errno=" << errno);
  if (pid_ == 0) {
    signal(SIGPIPE, SIG_IGN);
    alarm(300);  // never outlives a test that was killed
    close(down[1]);
    close(up[0]);
    Channel channel{down[0], up[1]};
    int status = body(channel);
    std::fflush(nullptr);
    _exit(status);
  }
  signal(SIGPIPE, SIG_IGN);
  close(down[0]);
  close(up[1]);
  channel_ = {up[0], down[1]};
}

Child::~Child() {
  if (!reaped_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(channel_.in);
  close(channel_.out);
}

void Child::Signal(int number) const {
  kill(pid_, number);
  siginfo_t info{};
  if (number == SIGSTOP) waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED);
  if (number == SIGKILL) waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
}

int Child::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace weft::net
