#include "collectives/rendezvous/launchers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/socket_address.h"
#include "net/secret.h"
#include "topology/job/hostlist.h"

namespace weft::collectives {
namespace {

constexpr const char* kOverride = "WEFT_JOB_LAUNCHER";
constexpr std::array kLaunchers = {Launcher::kNone, Launcher::kTorchrun, Launcher::kOpenMpi,
                                   Launcher::kSlurm};

// Below those that kernels hand out (32768 and up), above those of most services.
constexpr int kPortFirst = 15000;
constexpr int kPorts = 16384;

constexpr size_t kJobNameMax = 64;
constexpr size_t kJobNameKept = 40;  // of a longer name, before its hash

// Steps that are no srun's: extern, batch, interactive and pending ones (slurm.h).
constexpr int64_t kSlurmSpecialStepsFrom = 0xfffffff0;
constexpr int64_t kSlurmStepMax = 0xffffffff;

// FNV-1a: the same on every host.
uint64_t Hash(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

std::string JobName(absl::string_view text) {
  std::string name(text);
  std::replace_if(
      name.begin(), name.end(),
      [](char c) {
        return !absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
               !absl::StrContains("-._@", absl::string_view(&c, 1));
      },
      '-');
  if (name == text && name.size() <= kJobNameMax) return name;
  return absl::StrCat(name.substr(0, kJobNameKept), absl::StrFormat("-%016x", Hash(text)));
}

// ---- torchrun, weft-run, and scripts

constexpr std::array<absl::string_view, 4> kTorchrunNames = {"RANK", "WORLD_SIZE", "LOCAL_RANK",
                                                             "LOCAL_WORLD_SIZE"};

void CheckBelow(EnvironmentVariables& variables, absl::string_view number_name, int number,
                absl::string_view size_name, int size) {
  if (number < size) return;
  variables.AddProblem(
      absl::StrCat(number_name, "=", number, " is not below ", size_name, "=", size));
}

LaunchedRank ReadTorchrun(EnvironmentVariables& variables) {
  LaunchedRank rank;
  rank.launcher = Launcher::kTorchrun;
  const size_t before = variables.problems().size();
  rank.world_size = variables.RequiredInt("WORLD_SIZE", 1, kWorldSizeMax);
  rank.rank = variables.RequiredInt("RANK", 0, kWorldSizeMax - 1);
  rank.local_rank = variables.Int("LOCAL_RANK", 0, kWorldSizeMax).value_or(rank.rank);
  rank.local_world_size = variables.Int("LOCAL_WORLD_SIZE", 1, kWorldSizeMax)
                              .value_or(std::max(rank.world_size, rank.local_rank + 1));
  rank.host = variables.Int("GROUP_RANK", 0, kWorldSizeMax).value_or(0);
  if (variables.problems().size() > before) return rank;
  CheckBelow(variables, "RANK", rank.rank, "WORLD_SIZE", rank.world_size);
  CheckBelow(variables, "LOCAL_RANK", rank.local_rank, "LOCAL_WORLD_SIZE", rank.local_world_size);
  rank.is_on_one_host = rank.local_world_size >= rank.world_size;
  return rank;
}

// ---- Open MPI

bool HasOpenMpi(const EnvironmentVariables& variables) {
  return variables.HasOneOf({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
}

LaunchedRank ReadOpenMpi(EnvironmentVariables& variables) {
  LaunchedRank rank;
  rank.launcher = Launcher::kOpenMpi;
  const size_t before = variables.problems().size();
  rank.world_size = variables.RequiredInt("OMPI_COMM_WORLD_SIZE", 1, kWorldSizeMax);
  rank.rank = variables.RequiredInt("OMPI_COMM_WORLD_RANK", 0, kWorldSizeMax - 1);
  rank.local_world_size = variables.RequiredInt("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kWorldSizeMax);
  rank.local_rank = variables.RequiredInt("OMPI_COMM_WORLD_LOCAL_RANK", 0, kWorldSizeMax - 1);
  // Open MPI 4 and 5, and 4 without PMIx.
  std::optional<std::string> job = variables.Text("PMIX_NAMESPACE");
  if (!job.has_value()) job = variables.Text("OMPI_MCA_ess_base_jobid");
  if (!job.has_value()) {
    variables.AddProblem("neither PMIX_NAMESPACE nor OMPI_MCA_ess_base_jobid is set");
  }
  if (variables.problems().size() > before) return rank;
  rank.job = JobName(absl::StrCat("openmpi-", *job));
  CheckBelow(variables, "OMPI_COMM_WORLD_RANK", rank.rank, "OMPI_COMM_WORLD_SIZE", rank.world_size);
  CheckBelow(variables, "OMPI_COMM_WORLD_LOCAL_RANK", rank.local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE",
             rank.local_world_size);
  if (rank.local_world_size > rank.world_size) {
    variables.AddProblem(absl::StrCat("OMPI_COMM_WORLD_LOCAL_SIZE=", rank.local_world_size,
                                      " is above OMPI_COMM_WORLD_SIZE=", rank.world_size));
  }
  rank.is_on_one_host = rank.local_world_size == rank.world_size;
  return rank;
}

// ---- Slurm

// Before Slurm 20.11 steps have the second name alone; later ones have both.
absl::string_view StepName(const EnvironmentVariables& variables) {
  return variables.Has("SLURM_STEP_ID") ? "SLURM_STEP_ID" : "SLURM_STEPID";
}

// The number of the step that srun made; nothing: a batch script, a shell of salloc's, or no Slurm.
std::optional<int64_t> SlurmStep(EnvironmentVariables& variables) {
  const absl::string_view name = StepName(variables);
  const std::optional<std::string> text = variables.Text(name);
  if (!text.has_value() || *text == "batch" || *text == "extern" || *text == "interactive") {
    return std::nullopt;
  }
  const std::optional<int64_t> step = variables.Number(name, 0, kSlurmStepMax);
  if (step.has_value() && *step >= kSlurmSpecialStepsFrom) return std::nullopt;
  return step;
}

void ReadSlurmHosts(EnvironmentVariables& variables, LaunchedRank& rank) {
  const std::string list = variables.RequiredText("SLURM_STEP_NODELIST");
  const std::string counts = variables.RequiredText("SLURM_STEP_TASKS_PER_NODE");
  if (list.empty() || counts.empty()) return;
  absl::StatusOr<std::vector<std::string>> hosts = topology::ExpandHostlist(list);
  if (!hosts.ok()) {
    variables.AddProblem(absl::StrCat("SLURM_STEP_NODELIST: ", hosts.status().message()));
    return;
  }
  const absl::StatusOr<std::vector<int>> tasks = ParseTasksPerNode(counts);
  if (!tasks.ok()) {
    variables.AddProblem(absl::StrCat("SLURM_STEP_TASKS_PER_NODE: ", tasks.status().message()));
    return;
  }
  if (tasks->size() != hosts->size() ||
      std::accumulate(tasks->begin(), tasks->end(), 0) != rank.world_size) {
    variables.AddProblem(absl::StrCat("SLURM_STEP_TASKS_PER_NODE='", counts,
                                      "' does not place SLURM_STEP_NUM_TASKS=", rank.world_size,
                                      " tasks on SLURM_STEP_NODELIST='", list, "'"));
    return;
  }
  const int count = static_cast<int>(hosts->size());
  if (rank.host >= count) {
    CheckBelow(variables, "SLURM_NODEID", rank.host, "the number of hosts", count);
    return;
  }
  rank.local_world_size = (*tasks)[static_cast<size_t>(rank.host)];
  CheckBelow(variables, "SLURM_LOCALID", rank.local_rank, "this host's number of tasks",
             rank.local_world_size);
  rank.is_on_one_host = count == 1;
  rank.hosts = *std::move(hosts);
}

LaunchedRank ReadSlurm(EnvironmentVariables& variables, int64_t step) {
  LaunchedRank rank;
  rank.launcher = Launcher::kSlurm;
  const size_t before = variables.problems().size();
  // The step's number of tasks; SLURM_NTASKS may be that of the whole allocation.
  rank.world_size = variables.RequiredInt("SLURM_STEP_NUM_TASKS", 1, kWorldSizeMax);
  rank.rank = variables.RequiredInt("SLURM_PROCID", 0, kWorldSizeMax - 1);
  rank.local_rank = variables.RequiredInt("SLURM_LOCALID", 0, kWorldSizeMax - 1);
  rank.host = variables.RequiredInt("SLURM_NODEID", 0, kWorldSizeMax - 1);
  const int64_t job = variables.RequiredInt("SLURM_JOB_ID", 0, std::numeric_limits<int>::max());
  if (variables.problems().size() > before) return rank;
  CheckBelow(variables, "SLURM_PROCID", rank.rank, "SLURM_STEP_NUM_TASKS", rank.world_size);
  ReadSlurmHosts(variables, rank);
  rank.job = JobName(absl::StrCat(
      "slurm-", variables.Text("SLURM_CLUSTER_NAME").value_or("cluster"), "-", job, ".", step));
  return rank;
}

// ---- several launchers at once

// A launcher around or below the one of RANK; kNone: there is none.
LaunchedRank ReadOtherLauncher(EnvironmentVariables& variables) {
  if (HasOpenMpi(variables)) return ReadOpenMpi(variables);
  const std::optional<int64_t> step = SlurmStep(variables);
  return step.has_value() ? ReadSlurm(variables, *step) : LaunchedRank();
}

// How the launcher's variables say it: "SLURM_PROCID=2 of SLURM_STEP_NUM_TASKS=4".
std::string PlaceOf(const LaunchedRank& rank) {
  switch (rank.launcher) {
    case Launcher::kTorchrun:
      return absl::StrCat("RANK=", rank.rank, " of WORLD_SIZE=", rank.world_size);
    case Launcher::kOpenMpi:
      return absl::StrCat("OMPI_COMM_WORLD_RANK=", rank.rank,
                          " of OMPI_COMM_WORLD_SIZE=", rank.world_size);
    case Launcher::kSlurm:
      return absl::StrCat("SLURM_PROCID=", rank.rank, " of SLURM_STEP_NUM_TASKS=", rank.world_size);
    case Launcher::kNone:
      break;
  }
  return "no place";
}

void AddContradiction(EnvironmentVariables& variables, const LaunchedRank& ours,
                      absl::string_view theirs) {
  const absl::string_view name = LauncherName(ours.launcher);
  variables.AddProblem(absl::StrCat(
      theirs, " and ", PlaceOf(ours), " contradict each other: unset what is not meant, or set ",
      kOverride, "=torchrun (for RANK and WORLD_SIZE) or ", kOverride, "=", name));
}

// RANK, with another launcher around.
void CheckByHand(EnvironmentVariables& variables, const LaunchedRank& rank) {
  if (variables.HasOneOf({"TORCHELASTIC_RUN_ID", "WEFT_STORE"})) return;
  EnvironmentVariables others(variables.lookup());
  const LaunchedRank other = ReadOtherLauncher(others);
  // One task starts what it likes; and what is wrong with variables that do not count is not said.
  if (!others.problems().empty() || other.world_size == 1) return;
  if (other.rank == rank.rank && other.world_size == rank.world_size) return;
  AddContradiction(variables, other, PlaceOf(rank));
}

// Some of torchrun's variables without RANK, as batch scripts set them.
void CheckPartOfTorchrun(EnvironmentVariables& variables, const LaunchedRank& rank) {
  if (rank.world_size == 1) return;
  const std::array<std::pair<absl::string_view, int>, 3> expected = {
      {{"WORLD_SIZE", rank.world_size},
       {"LOCAL_RANK", rank.local_rank},
       {"LOCAL_WORLD_SIZE", rank.local_world_size}}};
  for (const auto& [name, value] : expected) {
    const std::optional<std::string> text = variables.Text(name);
    if (!text.has_value() || *text == absl::StrCat(value)) continue;
    AddContradiction(variables, rank,
                     absl::StrCat(name, "='", *text, "' (right would be ", value, ")"));
  }
}

std::optional<Launcher> Override(EnvironmentVariables& variables) {
  const std::optional<std::string> text = variables.Text(kOverride);
  if (!text.has_value()) return std::nullopt;
  for (const Launcher launcher : kLaunchers) {
    if (*text == LauncherName(launcher)) return launcher;
  }
  variables.AddProblem(absl::StrCat(kOverride, "='", *text,
                                    "' is no launcher: right are torchrun, openmpi, slurm, none"));
  return Launcher::kNone;
}

LaunchedRank ReadChosen(EnvironmentVariables& variables, Launcher launcher) {
  if (launcher == Launcher::kTorchrun) return ReadTorchrun(variables);
  if (launcher == Launcher::kOpenMpi) return ReadOpenMpi(variables);
  if (launcher == Launcher::kNone) return {};
  const std::optional<int64_t> step = SlurmStep(variables);
  if (step.has_value()) return ReadSlurm(variables, *step);
  variables.AddProblem(
      absl::StrCat(kOverride, "=slurm, but no step of srun's is in SLURM_STEP_ID"));
  return {};
}

// ---- meeting

int PortOf(EnvironmentVariables& variables, const LaunchedRank& rank) {
  const int derived = kPortFirst + static_cast<int>(Hash(rank.job) % kPorts);
  return variables.Int("MASTER_PORT", 1, 65535).value_or(derived);
}

std::string SecretProblem(Launcher launcher) {
  return absl::StrCat(net::kSecretVariable,
                      " is not set: ranks on several hosts need one secret for all, by which they "
                      "know each other; ",
                      launcher == Launcher::kSlurm
                          ? "in the batch script, before srun: "
                          : "before mpirun, to which -x WEFT_JOB_SECRET hands it on: ",
                      "export ", net::kSecretVariable, "=$(openssl rand -hex 32)");
}

}  // namespace

absl::string_view LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "openmpi";
    case Launcher::kSlurm:
      return "slurm";
    case Launcher::kNone:
      break;
  }
  return "none";
}

LaunchedRank ReadLaunchedRank(EnvironmentVariables& variables) {
  if (const std::optional<Launcher> chosen = Override(variables); chosen.has_value()) {
    return ReadChosen(variables, *chosen);
  }
  if (variables.Has("RANK")) {
    const size_t before = variables.problems().size();
    LaunchedRank rank = ReadTorchrun(variables);
    if (variables.problems().size() == before) CheckByHand(variables, rank);
    return rank;
  }
  const size_t before = variables.problems().size();
  LaunchedRank rank = ReadOtherLauncher(variables);
  if (variables.problems().size() > before) return rank;
  if (rank.launcher != Launcher::kNone) {
    CheckPartOfTorchrun(variables, rank);
    return rank;
  }
  if (variables.HasOneOf({kTorchrunNames.begin(), kTorchrunNames.end()})) {
    return ReadTorchrun(variables);
  }
  return rank;
}

MeetingPlace FindMeetingPlace(EnvironmentVariables& variables, const LaunchedRank& rank, uid_t user,
                              bool has_secret) {
  MeetingPlace place;
  if (rank.is_on_one_host) {
    place.address = absl::StrCat(kUnixPrefix, "weft-", user, "-", rank.job);
    place.listen = place.address;
    place.serves = rank.local_rank == 0;
    return place;
  }
  if (!has_secret) variables.AddProblem(SecretProblem(rank.launcher));
  std::string host = variables.Text("MASTER_ADDR").value_or("");
  if (rank.launcher == Launcher::kSlurm) {
    const auto named = std::find(rank.hosts.begin(), rank.hosts.end(), host);
    const auto number = named == rank.hosts.end() ? 0 : named - rank.hosts.begin();
    if (host.empty()) host = rank.hosts.empty() ? "" : rank.hosts.front();
    place.serves = rank.host == number && rank.local_rank == 0;
  } else {
    if (host.empty()) {
      variables.AddProblem(
          "MASTER_ADDR is not set: Open MPI does not tell its ranks on which host rank 0 is; right "
          "is that host's name or address: mpirun -x MASTER_ADDR=node0");
    }
    place.serves = rank.rank == 0;
  }
  const int port = PortOf(variables, rank);
  place.address = JoinHostPort(host, port);
  // On every address: the host may know itself by a name of its loopback interface.
  place.listen = absl::StrCat(":", port);
  return place;
}

absl::StatusOr<std::vector<int>> ParseTasksPerNode(absl::string_view text) {
  const auto wrong = [&](absl::string_view part) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text.substr(0, 200), "': '", part.substr(0, 40),
                     "' is no count of tasks, as 2 or 2(x3), of ", kWorldSizeMax, " in all"));
  };
  std::vector<int> counts;
  int64_t tasks = 0;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    absl::string_view rest = part;
    int count = 0;
    int repeat = 1;
    const size_t open = rest.find('(');
    if (open != absl::string_view::npos) {
      absl::string_view times = rest.substr(open);
      rest = rest.substr(0, open);
      if (!absl::ConsumePrefix(&times, "(x") || !absl::ConsumeSuffix(&times, ")") ||
          !absl::SimpleAtoi(times, &repeat)) {
        return wrong(part);
      }
    }
    if (!absl::SimpleAtoi(rest, &count) || count < 1 || count > kWorldSizeMax || repeat < 1 ||
        repeat > kWorldSizeMax) {
      return wrong(part);
    }
    tasks += int64_t{count} * repeat;
    if (tasks > kWorldSizeMax) return wrong(part);
    counts.insert(counts.end(), static_cast<size_t>(repeat), count);
  }
  return counts;
}

}  // namespace weft::collectives
