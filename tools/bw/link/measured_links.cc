#include "tools/bw/link/measured_links.h"

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::link_bw {
namespace {

constexpr int64_t kServeNanoseconds = 1'000'000;
// Turns without anything to do before the core is offered to whoever else waits for it.
constexpr int kTurnsToYield = 256;

int64_t Nanoseconds(const timeval& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + int64_t{time.tv_usec} * 1000;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MeasuredLinks>> MeasuredLinks::Create(Bootstrap& bootstrap,
                                                                     const Load& load,
                                                                     const Settings& settings,
                                                                     const std::set<int>& targets,
                                                                     const std::set<int>& sources) {
  std::unique_ptr<MeasuredLinks> links(new MeasuredLinks(load.events));
  net::TransportOptions options;
  options.self = Rank(bootstrap.rank());
  options.world_size = bootstrap.ranks();
  options.secret = bootstrap.secret();
  options.events = links.get();
  options.settings = settings;
  WEFT_ASSIGN_OR_RETURN(links->transport_, net::CreateTransport(load.transport, options));
  links->now_ = SystemClock::Nanoseconds();
  WEFT_RETURN_IF_ERROR(links->Connect(bootstrap, targets, sources,
                                      2 * settings.Duration("transport.connect_timeout")));
  return links;
}

absl::Status MeasuredLinks::Connect(Bootstrap& bootstrap, const std::set<int>& targets,
                                    const std::set<int>& sources, absl::Duration patience) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                        bootstrap.AllGather(transport_->address(), [this] { Serve(); }));
  for (int peer : targets) {
    to_[peer] = transport_->Connect(addresses[static_cast<size_t>(peer)], Rank(peer),
                                    absl::FromUnixNanos(now_));
  }
  // An empty message each way: a link stands once one is through, and not before.
  std::vector<net::Request> requests(targets.size() + sources.size());
  size_t used = 0;
  const int64_t give_up = now_ + absl::ToInt64Nanoseconds(patience);
  for (int peer : targets) {
    (void)to_[peer]->PostSend({}, net::RegionView(), &requests[used++]);
  }
  for (int peer : sources) {
    while (from_.count(peer) == 0 && status_.ok() && now_ < give_up) Serve();
    if (!status_.ok()) return status_;
    if (from_.count(peer) == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank ", peer, " has not connected to this one, at ", transport_->address(), ", within ",
          absl::FormatDuration(patience), " (twice transport.connect_timeout): it says why"));
    }
    (void)from_[peer]->PostReceive({}, {}, &requests[used++]);
  }
  auto done = [&] {
    return std::all_of(requests.begin(), requests.end(), [](auto& one) { return one.done(); });
  };
  while (!done() && status_.ok()) Serve();
  return status_;
}

MeasuredLinks::~MeasuredLinks() {
  to_.clear();
  from_.clear();
}

std::string MeasuredLinks::Describe() const {
  std::string text;
  for (const auto& [peer, link] : to_) absl::StrAppend(&text, link->Describe(), "\n");
  return text;
}

bool MeasuredLinks::Progress() {
  const bool moved = transport_->Progress(absl::FromUnixNanos(now_));
  const int64_t now = SystemClock::Nanoseconds();
  if (moved) busy_ += now - now_;
  now_ = now;
  return moved;
}

absl::Status MeasuredLinks::Turn() {
  if (Progress()) {
    idle_turns_ = 0;
  } else if (sleeps_) {
    Sleep(kServeNanoseconds);
  } else if (++idle_turns_ >= kTurnsToYield) {
    idle_turns_ = 0;
    sched_yield();
  }
  return status_;
}

void MeasuredLinks::Serve() {
  if (!Progress()) Sleep(kServeNanoseconds);
}

void MeasuredLinks::Sleep(int64_t nanoseconds) {
  if (transport_->PrepareWait()) {
    const absl::Duration left = transport_->NextDeadline() - absl::FromUnixNanos(now_);
    nanoseconds = std::clamp<int64_t>(absl::ToInt64Nanoseconds(left), 0, nanoseconds);
    pollfd one{.fd = transport_->wait_fd(), .events = POLLIN, .revents = 0};
    timespec limit{.tv_sec = 0, .tv_nsec = nanoseconds};
    ppoll(&one, 1, &limit, nullptr);
  }
  transport_->FinishWait();
  now_ = SystemClock::Nanoseconds();
}

MeasuredLinks::Marks MeasuredLinks::ReadMarks() const {
  Marks marks;
  rusage thread{}, process{};
  getrusage(RUSAGE_THREAD, &thread);
  getrusage(RUSAGE_SELF, &process);
  marks.wall = SystemClock::Nanoseconds();
  marks.busy = busy_;
  marks.user = Nanoseconds(thread.ru_utime);
  marks.kernel = Nanoseconds(thread.ru_stime);
  marks.process = Nanoseconds(process.ru_utime) + Nanoseconds(process.ru_stime);
  marks.preempted = thread.ru_nivcsw;
  return marks;
}

void MeasuredLinks::StartUsage() { start_ = ReadMarks(); }

Usage MeasuredLinks::StopUsage() {
  const Marks end = ReadMarks();
  auto share = [&](int64_t Marks::*what) {
    return static_cast<double>(end.*what - start_.*what) /
           static_cast<double>(std::max<int64_t>(end.wall - start_.wall, 1));
  };
  Usage usage;
  usage.seconds = static_cast<double>(end.wall - start_.wall) / 1e9;
  usage.busy = share(&Marks::busy);
  usage.core = share(&Marks::user) + share(&Marks::kernel);
  usage.kernel = usage.core > 0 ? share(&Marks::kernel) / usage.core : 0;
  usage.process = share(&Marks::process);
  usage.preempted = end.preempted - start_.preempted;
  return usage;
}

void MeasuredLinks::OnAccepted(std::unique_ptr<net::ReceiveLink> link) {
  const int peer = link->peer().value();
  from_[peer] = std::move(link);
}

void MeasuredLinks::OnBroken(net::Link& /*link*/, const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void Unmap::operator()(std::byte* memory) const { munmap(memory, bytes); }

absl::StatusOr<Slots> Slots::Allocate(net::Transport& transport, size_t size, int count) {
  Slots slots;
  slots.count_ = count;
  slots.stride_ = std::max<size_t>((size + 63) / 64 * 64, 64);
  const size_t bytes = slots.stride_ * static_cast<size_t>(count);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("allocate ", bytes, " bytes"));
  }
  slots.memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
  std::memset(memory, 1, bytes);
  WEFT_ASSIGN_OR_RETURN(slots.region_, transport.Register(memory, bytes));
  return slots;
}

}  // namespace weft::link_bw
