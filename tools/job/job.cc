#include "tools/job/job.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::job {

using collectives::Communicator;
using collectives::Endpoint;

absl::Status BecomeLauncher(int ranks, int argc, char** argv,
                            const std::vector<std::string>& options) {
  std::error_code error;
  std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return ErrnoStatus(error.value(), "read /proc/self/exe");
  std::string launcher = std::filesystem::path(self).parent_path() / "weft-run";
  std::vector<std::string> words = {launcher, "-n", absl::StrCat(ranks), "--output", "rank0"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", self});
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--ranks") == 0) {
      ++i;
    } else if (std::strncmp(argv[i], "--ranks=", 8) != 0) {
      words.emplace_back(argv[i]);
    }
  }
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(launcher.c_str(), arguments.data());
  return ErrnoStatus(errno, absl::StrCat("start ", launcher));
}

absl::StatusOr<Joined> Join(const Settings& settings, const std::string& program,
                            const std::optional<topology::Mesh>& mesh) {
  Joined joined;
  collectives::JoinOptions options;
  options.settings = settings;
  options.program = program;
  if (mesh.has_value()) options.mesh = [&mesh](int) { return *mesh; };
  options.make_groups = [&joined](const std::shared_ptr<Endpoint>& endpoint) -> absl::Status {
    std::vector<Rank> everybody;
    everybody.reserve(static_cast<size_t>(endpoint->world_size()));
    for (int rank = 0; rank < endpoint->world_size(); ++rank) everybody.push_back(Rank(rank));
    WEFT_ASSIGN_OR_RETURN(joined.world, Communicator::Create(endpoint, "world", everybody));
    return absl::OkStatus();
  };
  WEFT_ASSIGN_OR_RETURN(static_cast<collectives::Job&>(joined),
                        collectives::JoinJob(std::move(options)));
  return joined;
}

}  // namespace weft::job
