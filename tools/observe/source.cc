#include "tools/observe/source.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/first_line.h"
#include "base/status.h"
#include "base/temporary_path.h"
#include "tools/command_line.h"
#include "tools/ending_signal.h"

namespace weft::observe {
namespace {

// From here on a signal to end, or a reader of the output that is gone, leaves no `folder` behind.
void RemoveAtTheEnd(const std::string& folder) {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  CleanUpAtEndingSignal([folder] { RemoveWhileWritten(folder); });
}

}  // namespace

Source::Source(std::string job, const std::map<std::string, std::string>& agents)
    : job_(std::move(job)), tokens_(agents) {
  for (const auto& [agent, _] : agents) agents_.push_back(agent);
}

Source::~Source() {
  std::error_code ignored;
  if (!fetched_.empty()) std::filesystem::remove_all(fetched_, ignored);
}

void Source::Register(CLI::App& app) {
  is_of_a_program_ = true;
  app.add_option("--records", folder_,
                 "folder of the job's rings (default: records.folder's default)");
  app.add_option(
         "--job", job_,
         "the job's name (default: of those that are alive, else of all, the one that began last)")
      ->check(CheckJobName);
  app.add_option("--agent", agents_,
                 "HOST:PORT of a weft-agent, instead of --records; repeat it for each host")
      ->allow_extra_args(false);
  app.add_option("--token-file", token_file_, "file whose first line is the agents' token")
      ->check(CLI::ExistingFile);
  app.add_flag("--replay", replay_,
               "the processes are gone, or the files are copies: time is when anything was "
               "recorded last");
}

absl::Status Source::ConnectAgents() {
  const std::string token = token_file_.empty() ? "" : FirstLine(token_file_);
  std::vector<HttpAddress> addresses;
  for (const std::string& agent : agents_) {
    WEFT_ASSIGN_OR_RETURN(addresses.emplace_back(), ParseHttpAddress(agent));
  }
  WEFT_ASSIGN_OR_RETURN(std::string name, TemporaryPath("weft-rings"));
  if (mkdtemp(name.data()) == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("make the temporary folder ", name));
  }
  fetched_ = name;
  if (is_of_a_program_) RemoveAtTheEnd(fetched_);
  for (size_t i = 0; i < agents_.size(); ++i) {
    const auto own = tokens_.find(agents_[i]);
    clients_.emplace_back(std::move(addresses[i]), own == tokens_.end() ? token : own->second,
                          fetched_, i);
  }
  silent_.resize(agents_.size());
  watch_ = std::make_unique<JobWatch>(fetched_, job_);
  return absl::OkStatus();
}

// Several at once: of thousands of hosts, each a round trip or two away, one after the other would
// take longer than the time between two looks.
absl::Status Source::Fetch() {
  if (clients_.empty()) WEFT_RETURN_IF_ERROR(ConnectAgents());
  constexpr size_t kAtOnce = 16;
  std::vector<absl::Status> fetched(clients_.size());
  std::atomic<size_t> next{0};
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < std::min(kAtOnce, clients_.size()); ++i) {
    threads.emplace_back([this, &fetched, &next] {
      for (size_t at = next++; at < clients_.size(); at = next++)
        fetched[at] = clients_[at].Fetch();
    });
  }
  threads.clear();  // waits for them
  bool any = false;
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (!fetched[i].ok() && !silent_[i]) {
      say_(absl::StrCat("agent ", agents_[i], ": ", fetched[i].message()));
    }
    silent_[i] = !fetched[i].ok();
    any |= fetched[i].ok();
    for (const auto& [path, one] : clients_[i].told()) watch_->Tell(path, one);
  }
  return any ? absl::OkStatus() : fetched.front();
}

uint64_t Source::received() const {
  uint64_t bytes = 0;
  for (const AgentClient& client : clients_) bytes += client.received();
  return bytes;
}

absl::Status Source::Update() {
  if (!agents_.empty()) {
    WEFT_RETURN_IF_ERROR(Fetch());
  } else if (watch_ == nullptr) {
    watch_ = std::make_unique<JobWatch>(folder_, job_);
  }
  watch_->Update(!replay_, SystemClock::Nanoseconds());
  if (watch_->found()) return absl::OkStatus();
  const std::string where = !agents_.empty()  ? absl::StrCat("from ", agents_.size(), " agents")
                            : folder_.empty() ? absl::StrCat("in ", DefaultRecordFolder())
                                              : absl::StrCat("in ", folder_);
  return absl::NotFoundError(absl::StrCat(
      "no records of ", job_.empty() ? "any job" : absl::StrCat("job ", job_), " ", where,
      "; jobs write them unless records.enabled is off, and leave them when they end in good "
      "order with records.keep=true only"));
}

std::vector<std::string> Source::files() const {
  std::vector<std::string> out;
  for (const auto& [number, rank] : watch_->view().ranks) out.push_back(rank.path);
  return out;
}

}  // namespace weft::observe
