#include "tools/nccl_harness/runner.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/command.h"
#include "base/json_text.h"
#include "base/open_files.h"
#include "base/status.h"

namespace weft::harness {
namespace {

using nlohmann::json;

// Times --timeout without a move (CallPage), beyond the scenarios' own limits: only a call that
// never returns takes so long.
constexpr int kHangFactor = 4;
#ifdef __SANITIZE_THREAD__
constexpr size_t kThreadsOfSanitizer = 1;  // which it starts when it likes
#else
constexpr size_t kThreadsOfSanitizer = 0;
#endif
// What a library may open once and for ever, such as a descriptor of a log.
size_t CountEntries(const char* folder) {
  std::error_code error;
  size_t count = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; it != end; ++it) ++count;
  return count;
}

void WriteLine(int fd, const json& line) {
  std::string text = JsonText(line) + "\n";
  for (size_t at = 0; at < text.size();) {
    ssize_t wrote = write(fd, text.data() + at, text.size() - at);
    if (wrote <= 0) return;
    at += static_cast<size_t>(wrote);
  }
}

// A thread that was just joined may still be listed for a moment.
size_t CountThreads(size_t expected) {
  size_t count = 0;
  for (int i = 0; i < 200; ++i) {
    count = CountEntries("/proc/self/task");
    if (count <= expected) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count;
}

// What one rank does in its process or thread.
void RunRank(Scenario scenario, int number, int version, const Options& options, CallPage& page,
             Channel& channel, int out, bool alone) {
  Watch watch(page, options.block_limit, [&](const Finding& finding) {
    WriteLine(out, {{"rank", number},
                    {"contract", std::string(RowOf(finding.contract).name)},
                    {"detail", finding.detail}});
  });
  absl::StatusOr<Library> library = Library::Load(options.plugin);
  if (!library.ok()) return watch.Broken(Contract::kNoCrash, library.status().message());
  std::unique_ptr<NetApi> api = library->Open(version, watch);
  size_t descriptors = CountEntries("/proc/self/fd"), threads = CountEntries("/proc/self/task");
  Rank rank(number, options, *api, watch, channel);
  absl::Status status = Run(scenario, rank);
  json figures = json::array(), measured = json::array();
  for (const auto& [name, value] : rank.figures()) figures.push_back({name, value});
  for (const Measured& row : rank.measured()) {
    measured.push_back({row.bytes, row.half_round_trip_us, row.time_us, row.wrong});
  }
  WriteLine(out, {{"rank", number}, {"figures", figures}, {"measured", measured}});
  // Aborted and Cancelled: a breach, or the other rank, has said why.
  if (!status.ok() && !absl::IsAborted(status) && !absl::IsCancelled(status)) {
    WriteLine(out, {{"rank", number}, {"failure", std::string(status.message())}});
  }
  // Only what ran to its end and shares its process with nobody can be held to have given all back.
  if (!status.ok() || !alone || scenario == Scenario::kDeath) return;
  watch.SetStep("after the last finalize");
  if (size_t now = CountEntries("/proc/self/fd"); now > descriptors) {
    watch.Broken(Contract::kDescriptorsReturned,
                 absl::StrCat(now - descriptors, " descriptors are open that were not before"));
  }
  threads += kThreadsOfSanitizer;
  if (size_t now = CountThreads(threads); now > threads) {
    watch.Broken(Contract::kThreadsReturned,
                 absl::StrCat(now - threads, " threads run that did not before"));
  }
  watch.SetStep("unload");
}

[[noreturn]] void ChildMain(Scenario scenario, int version, const Options& options, CallPage* pages,
                            std::vector<std::pair<int, Channel>>& ranks, int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLogVerbose(options.verbose);
  bool alone = ranks.size() == 1;
  std::vector<std::thread> threads;
  for (auto& [number, channel] : ranks) {
    auto work = [&, number = number, channel = &channel] {
      RunRank(scenario, number, version, options, pages[number], *channel, out, alone);
      channel->Close();  // so that the other rank does not wait for us
    };
    if (alone) {
      work();
    } else {
      threads.emplace_back(work);
    }
  }
  for (std::thread& thread : threads) thread.join();
  _exit(0);
}

struct Child {
  pid_t pid = -1;
  std::vector<int> ranks;
  int status = 0;
  bool ended = false, hung = false;
};

class ScenarioRun {
 public:
  ScenarioRun(Scenario scenario, int version, const Options& options)
      : scenario_(scenario), version_(version), options_(options) {}
  ~ScenarioRun() {
    if (pages_ != nullptr) munmap(pages_, 2 * sizeof(CallPage));
  }

  absl::StatusOr<Outcome> Go() {
    absl::Time begin = SystemClock().Now();
    WEFT_RETURN_IF_ERROR(Start());
    Collect();
    outcome_.scenario = scenario_;
    outcome_.version = version_;
    outcome_.seconds = absl::ToDoubleSeconds(SystemClock().Now() - begin);
    for (const Child& child : children_) Judge(child);
    return std::move(outcome_);
  }

 private:
  absl::Status Start() {
    void* memory = mmap(nullptr, 2 * sizeof(CallPage), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return ErrnoStatus(errno, "mmap");
    pages_ = new (memory) CallPage[2];
    WEFT_ASSIGN_OR_RETURN(auto channels, Channel::CreatePair());
    int pipe_fds[2];
    if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
    in_ = FileDescriptor(pipe_fds[0]);
    FileDescriptor out(pipe_fds[1]);
    bool together = options_.threads && scenario_ != Scenario::kDeath;
    std::vector<std::vector<int>> processes;
    if (RanksOf(scenario_) == 1) {
      processes = {{0}};
    } else if (together) {
      processes = {{0, 1}};
    } else {
      processes = {{0}, {1}};
    }
    for (const std::vector<int>& ranks : processes) {
      Child child;
      child.ranks = ranks;
      child.pid = fork();
      if (child.pid < 0) return ErrnoStatus(errno, "fork");
      if (child.pid == 0) {
        std::vector<std::pair<int, Channel>> mine;
        mine.reserve(ranks.size());
        for (int rank : ranks) {
          mine.emplace_back(rank, std::move(rank == 0 ? channels.first : channels.second));
        }
        channels.first.Close();
        channels.second.Close();
        ChildMain(scenario_, version_, options_, pages_, mine, out.get());
      }
      children_.push_back(child);
    }
    return absl::OkStatus();
  }

  // Steps begun and requests completed by both ranks so far.
  uint64_t Moves() const { return pages_[0].moves + pages_[1].moves; }

  // The longest time that ranks may take without a move. Where a peer dies, nothing moves until its
  // death is reported.
  absl::Duration Patience() const {
    return kHangFactor * options_.timeout +
           (scenario_ == Scenario::kDeath ? options_.death_limit : absl::ZeroDuration());
  }

  // Reads until all have ended, or have not moved for too long.
  void Collect() {
    std::string text;
    uint64_t moves = 0;
    absl::Time give_up = SystemClock().Now() + Patience();
    while (true) {
      pollfd state{in_.get(), POLLIN, 0};
      int ready = poll(&state, 1, 100);
      if (ready > 0) {
        char buffer[65536];
        ssize_t got = read(in_.get(), buffer, sizeof(buffer));
        if (got <= 0) break;  // the last writer has gone
        text.append(buffer, static_cast<size_t>(got));
      }
      if (const uint64_t now = Moves(); now != moves) {
        moves = now;
        give_up = SystemClock().Now() + Patience();
      }
      if (SystemClock().Now() < give_up) continue;
      for (Child& child : children_) {
        child.hung = !Reap(child, WNOHANG);
        if (child.hung) kill(child.pid, SIGKILL);
      }
      break;
    }
    for (Child& child : children_) Reap(child, 0);
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) Take(line);
  }

  static bool Reap(Child& child, int flags) {
    if (!child.ended) child.ended = waitpid(child.pid, &child.status, flags) == child.pid;
    return child.ended;
  }

  void Take(absl::string_view line) {
    json entry = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object()) return;
    int rank = entry["rank"];
    if (entry.contains("failure")) {
      if (!outcome_.failure.empty()) return;
      outcome_.failure = absl::StrCat("rank ", rank, ": ", entry["failure"].get<std::string>());
      return;
    }
    if (entry.contains("contract")) {
      const ContractRow* row = FindContract(entry["contract"].get<std::string>());
      if (row != nullptr) Add(row->contract, rank, entry["detail"].get<std::string>());
      return;
    }
    if (rank == 0) {
      for (const json& one : entry["figures"]) outcome_.figures.emplace_back(one[0], one[1]);
    }
    if (rank == 1) {
      // Bandwidth is what arrives.
      for (const json& one : entry["measured"]) {
        outcome_.measured.push_back({one[0], one[1], one[2], one[3]});
      }
    }
  }

  void Add(Contract contract, int rank, const std::string& detail) {
    for (Breach& breach : outcome_.breaches) {
      if (breach.contract == contract && breach.rank == rank) {
        ++breach.count;
        return;
      }
    }
    outcome_.breaches.push_back({contract, scenario_, version_, rank, 1, detail});
  }

  void Judge(const Child& child) {
    bool killed = WIFSIGNALED(child.status) != 0;
    bool may_die = scenario_ == Scenario::kDeath && child.ranks.back() == 1 && killed &&
                   WTERMSIG(child.status) == SIGKILL && !child.hung;
    bool well = WIFEXITED(child.status) && WEXITSTATUS(child.status) == 0;
    if (well || may_die) return;
    for (int rank : child.ranks) {
      const CallPage& page = pages_[rank];
      const char* step = page.step.load();
      std::string where = absl::StrCat("in step \"", step == nullptr ? "load" : step, "\"");
      Contract contract = Contract::kNoCrash;
      for (const CallPage::Slot& slot : page.slots) {
        const char* call = slot.call.load();
        const char* blame = slot.blame.load();
        if (call == nullptr) continue;
        absl::StrAppend(&where, ", in ", call);
        const ContractRow* row = blame == nullptr ? nullptr : FindContract(blame);
        bool blocks = row != nullptr && row->contract == Contract::kNeverBlocks;
        if (row != nullptr && (child.hung || !blocks)) contract = row->contract;
      }
      std::string how = child.hung
                            ? absl::StrCat("did not return for ", absl::FormatDuration(Patience()))
                        : killed ? absl::StrCat("was killed by signal ", WTERMSIG(child.status),
                                                " (", strsignal(WTERMSIG(child.status)), ")")
                                 : absl::StrCat("exited with status ", WEXITSTATUS(child.status));
      Add(contract, rank, absl::StrCat("the process ", how, " ", where));
    }
  }

  const Scenario scenario_;
  const int version_;
  const Options& options_;
  CallPage* pages_ = nullptr;
  FileDescriptor in_;
  std::vector<Child> children_;
  Outcome outcome_;
};

}  // namespace

absl::StatusOr<PluginInfo> Inspect(const std::string& plugin, absl::Duration limit) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  FileDescriptor in(fds[0]), out(fds[1]);
  pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    CallPage page;
    Watch watch(page, absl::InfiniteDuration());
    absl::StatusOr<Library> library = Library::Load(plugin);
    json answer;
    if (library.ok()) {
      std::vector<int> versions = library->versions();
      auto api = versions.empty() ? nullptr : library->Open(versions.back(), watch);
      answer = {{"path", library->path()},
                {"versions", versions},
                {"name", api == nullptr ? "" : api->name()}};
    } else {
      answer = {{"error", std::string(library.status().message())}};
    }
    WriteLine(out.get(), answer);
    _exit(0);
  }
  out = FileDescriptor();
  std::string text;
  const bool in_time = ReadPipe(in.get(), limit, &text);
  if (!in_time) kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  if (!in_time) {
    return absl::DeadlineExceededError(absl::StrCat("plugin \"", plugin, "\" is not loaded after ",
                                                    absl::FormatDuration(limit), " (--timeout)"));
  }
  json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) {
    return absl::NotFoundError(
        absl::StrCat("plugin \"", plugin, "\" ends the process when loaded"));
  }
  if (answer.contains("error")) return absl::NotFoundError(answer["error"].get<std::string>());
  PluginInfo info;
  info.path = answer["path"];
  info.name = answer["name"];
  info.versions = answer["versions"].get<std::vector<int>>();
  if (info.versions.empty()) {
    return absl::NotFoundError(absl::StrCat(info.path, " has no symbol ncclNetPlugin_v",
                                            kVersionMin, " to v", kVersionMax));
  }
  return info;
}

absl::StatusOr<Outcome> RunScenario(Scenario scenario, int version, const Options& options) {
  RaiseOpenFilesLimit();
  return ScenarioRun(scenario, version, options).Go();
}

}  // namespace weft::harness
