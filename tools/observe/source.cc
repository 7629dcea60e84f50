#include "tools/observe/source.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/first_line.h"
#include "base/status.h"
#include "tools/observe/agent.h"

namespace weft::observe {

Source::~Source() {
  std::error_code ignored;
  if (!fetched_.empty()) std::filesystem::remove_all(fetched_, ignored);
}

void Source::Register(CLI::App& app) {
  app.add_option("--records", folder_,
                 "folder of the job's rings (default: records.folder's default)");
  app.add_option(
      "--job", job_,
      "the job's name (default: of those that are alive, else of all, the one that began last)");
  app.add_option("--agent", agents_,
                 "HOST:PORT of a weft-agent, instead of --records; repeat it for each host")
      ->allow_extra_args(false);
  app.add_option("--token-file", token_file_, "file whose first line is the agents' token")
      ->check(CLI::ExistingFile);
  app.add_flag("--replay", replay_,
               "the processes are gone, or the files are copies: time is when anything was "
               "recorded last");
}

absl::Status Source::Fetch() {
  if (!token_file_.empty()) token_ = FirstLine(token_file_);
  if (fetched_.empty()) {
    std::string name = (std::filesystem::temp_directory_path() / "weft-rings-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return ErrnoStatus(errno, "make a temporary folder");
    fetched_ = name;
  }
  std::map<std::string, JobWatch::Told> told;
  for (size_t i = 0; i < agents_.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(const HttpAddress address, ParseHttpAddress(agents_[i]));
    WEFT_RETURN_IF_ERROR(FetchRings(address, token_, fetched_, &told));
  }
  // The files are whole copies: read anew each time.
  watch_ = std::make_unique<JobWatch>(fetched_, job_);
  for (const auto& [path, one] : told) watch_->Tell(path, one);
  return absl::OkStatus();
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
