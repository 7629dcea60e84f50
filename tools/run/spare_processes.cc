#include "tools/run/spare_processes.h"

#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/rendezvous/warm_process.h"
#include "tools/run/process.h"

namespace weft::run {
namespace {

// From the use of a spare process to the start of the next one, so that its start takes no time
// from the ranks that are meeting again.
constexpr absl::Duration kSpareAfter = absl::Seconds(5);
// Spares that end by themselves one after the other: then there are none.
constexpr int kSparesLostMost = 3;

}  // namespace

bool SpareProcesses::Use(RankProcess& rank, const Variables& job_variables, absl::Time now) {
  if (spares_.empty()) return false;
  Spare spare = std::move(spares_.back());
  spares_.pop_back();
  RefillLater(now);
  Variables place = RankVariables(job_variables, rank);
  for (const auto& [name, value] : job_variables) {
    const auto has = spare.variables.find(name);
    if (has == spare.variables.end() || has->second != value) place.emplace(name, value);
  }
  if (!collectives::WritePlace(spare.place.get(), place).ok()) {
    kill(spare.process.pid, SIGKILL);  // reaped as any child
    return false;
  }
  lost_ = 0;
  rank.pid = spare.process.pid;
  rank.keeper = spare.process.keeper;
  spare.process.output->Finish();
  rank.streams = std::move(spare.process.streams);
  return true;
}

void SpareProcesses::RefillLater(absl::Time now) { refill_at_ = now + kSpareAfter; }

absl::Status SpareProcesses::Refill(const Variables& job_variables, absl::Time now) {
  if (now < refill_at_) return absl::OkStatus();
  refill_at_ = absl::InfiniteFuture();
  if (lost_ >= kSparesLostMost) return absl::OkStatus();
  while (count() < options_.spares) WEFT_RETURN_IF_ERROR(Start(job_variables));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RankOutput>> SpareProcesses::MakeOutput() const {
  const Style style = options_.output == OutputMode::kAll ? Style::kLines : Style::kNone;
  auto output = std::make_unique<RankOutput>(&terminal_, options_.prefix ? "[spare] " : "",
                                             std::array{style, style});
  if (options_.log_dir.empty()) return output;
  std::error_code error;
  std::filesystem::create_directories(options_.log_dir, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("make the folder ", options_.log_dir));
  WEFT_RETURN_IF_ERROR(output->OpenLog(absl::StrCat(options_.log_dir, "/spares.log")));
  return output;
}

absl::Status SpareProcesses::Start(const Variables& job_variables) {
  Spare spare;
  WEFT_ASSIGN_OR_RETURN(spare.process.output, MakeOutput());
  WEFT_ASSIGN_OR_RETURN(Pipe place, MakePipe());
  // The spare's end waits, ours does not.
  fcntl(place.read.get(), F_SETFL, 0);
  fcntl(place.write.get(), F_SETFL, O_NONBLOCK);
  std::array<FileDescriptor, 2> ends;
  for (size_t index = 0; index < ends.size(); ++index) {
    WEFT_ASSIGN_OR_RETURN(Pipe pipe, MakePipe());
    spare.process.streams[index] = std::move(pipe.read);
    ends[index] = std::move(pipe.write);
  }
  ProcessOptions process;
  process.command = options_.command;
  process.environment = Lines({{collectives::kWarmVariable, "1"}}, job_variables);
  process.standard_input = place.read.get();
  process.standard_output = ends[0].get();
  process.standard_error = ends[1].get();
  process.open_files = options_.rank_open_files;
  WEFT_ASSIGN_OR_RETURN(const StartedProcess started, StartProcess(process));
  spare.process.pid = started.pid;
  spare.process.keeper = started.keeper;
  spare.place = std::move(place.write);
  spare.variables = job_variables;
  spares_.push_back(std::move(spare));
  return absl::OkStatus();
}

void SpareProcesses::Kill() {
  for (const Spare& spare : spares_) kill(-spare.process.pid, SIGKILL);
  spares_.clear();
  refill_at_ = absl::InfiniteFuture();
}

std::vector<RankProcess*> SpareProcesses::Processes() {
  std::vector<RankProcess*> all;
  for (Spare& spare : spares_) all.push_back(&spare.process);
  return all;
}

std::vector<SpareProcesses::Spare>::iterator SpareProcesses::At(pid_t pid) {
  return std::find_if(spares_.begin(), spares_.end(),
                      [pid](const Spare& spare) { return spare.process.pid == pid; });
}

RankProcess* SpareProcesses::Find(pid_t pid) {
  const auto found = At(pid);
  return found == spares_.end() ? nullptr : &found->process;
}

bool SpareProcesses::Owns(pid_t pid) const {
  return std::any_of(spares_.begin(), spares_.end(), [pid](const Spare& spare) {
    return spare.process.keeper == pid || spare.process.pid == pid;
  });
}

std::string SpareProcesses::OnEnded(pid_t pid, absl::Time now) {
  const auto ended = At(pid);
  ended->process.output->Finish();
  spares_.erase(ended);
  if (++lost_ < kSparesLostMost) {
    RefillLater(now);
    return "";
  }
  refill_at_ = absl::InfiniteFuture();
  return absl::StrCat(kSparesLostMost,
                      " spare processes have ended by themselves, one after the other: there are "
                      "none from here (--spares is for programs that wait for a place, "
                      "docs/recovery.md)");
}

}  // namespace weft::run
