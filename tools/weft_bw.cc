// weft-bw: bandwidth and latency of collectives and of point to point, with nccl-tests' columns.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"
#include "collectives/rendezvous/job_environment.h"
#include "tools/bw/measure.h"
#include "tools/bw/operation.h"
#include "tools/bw/options.h"
#include "tools/bw/report.h"

namespace weft::bw {
namespace {

using collectives::Communicator;
using collectives::DataType;
using collectives::Endpoint;
using collectives::EndpointOptions;
using collectives::JobEnvironment;
using collectives::JobStore;
using collectives::ReduceOp;

// Becomes `weft-run -n N -- weft-bw ...`, this command line without --ranks. Returns only on error.
absl::Status BecomeLauncher(int ranks, int argc, char** argv) {
  std::error_code error;
  std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return ErrnoStatus(error.value(), "read /proc/self/exe");
  std::string launcher = std::filesystem::path(self).parent_path() / "weft-run";
  std::vector<std::string> words = {launcher, "-n", absl::StrCat(ranks), "--output", "rank0",
                                    "--",     self};
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

// Store, endpoint and group die in reverse order.
struct Rendezvous {
  JobEnvironment environment;
  JobStore store;
  std::shared_ptr<Endpoint> endpoint;
  std::unique_ptr<Communicator> world;
};

absl::StatusOr<Rendezvous> Join(const Settings& settings) {
  Rendezvous job;
  WEFT_ASSIGN_OR_RETURN(job.environment, JobEnvironment::FromEnvironment());
  if (job.environment.torch_agent_store && job.environment.store.empty()) {
    job.environment.torch_agent_store = false;
    ++job.environment.master_port;
  }
  WEFT_ASSIGN_OR_RETURN(job.store, collectives::StoreFromEnvironment(
                                       job.environment, settings.Duration("store.timeout")));
  EndpointOptions options;
  options.rank = job.environment.rank;
  options.world_size = job.environment.world_size;
  options.store = job.store.store.get();
  options.job = absl::StrCat(job.environment.job, "/weft-bw");
  options.secret = job.environment.secret;
  options.settings = settings;
  WEFT_ASSIGN_OR_RETURN(job.endpoint, Endpoint::Create(std::move(options)));
  std::vector<Rank> everybody;
  everybody.reserve(static_cast<size_t>(job.environment.world_size));
  for (int rank = 0; rank < job.environment.world_size; ++rank) everybody.push_back(Rank(rank));
  WEFT_ASSIGN_OR_RETURN(job.world, Communicator::Create(job.endpoint, "world", everybody));
  return job;
}

// Every combination that makes a difference and that the library knows.
std::vector<Case> CasesOf(const OperationInfo& info, const Options& options, int ranks) {
  std::vector<Case> cases;
  std::vector<DataType> types = options.types;
  std::vector<ReduceOp> reductions = options.reductions;
  std::vector<Bytes> sizes = options.Sizes();
  if (!info.reduces()) reductions = {ReduceOp::kSum};
  if (info.operation == Operation::kBarrier) {
    types = {DataType::kUint8};
    sizes = {Bytes(0)};
  }
  for (DataType type : types) {
    for (ReduceOp reduction : reductions) {
      if (info.reduces() && !Supports(reduction, type)) continue;
      for (Bytes size : sizes) {
        Case one;
        one.operation = info.operation;
        one.type = type;
        one.op = reduction;
        one.root = options.root;
        one.count = CountFor(info.operation, type, size, ranks);
        cases.push_back(one);
      }
    }
  }
  return cases;
}

void ShowSchedule(const Case& what, const Options& options, int ranks) {
  const OperationInfo& info = InfoOf(what.operation);
  if (!info.kind.has_value()) return;
  collectives::CollectiveSpec spec;
  spec.kind = *info.kind;
  spec.size = ranks;
  spec.root = what.root;
  spec.count = what.count;
  spec.average = info.reduces() && what.op == ReduceOp::kAverage;
  size_t element = collectives::SizeOf(what.type);
  spec.chunk =
      static_cast<uint64_t>(options.settings.ByteCount("collective.chunk_bytes").count()) / element;
  Bytes part = SizeOf(what, ranks) / ranks;
  const collectives::Algorithm& algorithm = collectives::ChooseAlgorithm(
      options.settings.Text("collective.algorithm"), spec.kind, ranks, part, /*one_host=*/true);
  absl::PrintF("# %s of %s on %d ranks: %s; rank 0:\n%s", info.name, ToString(SizeOf(what, ranks)),
               ranks, algorithm.name, ToText(algorithm.build(spec)));
}

absl::Status RunCase(Case what, const Options& options, Buffers& buffers, Rendezvous& job,
                     Control& control, Report& report) {
  Result results[2];
  for (bool in_place : {false, true}) {
    bool wanted = in_place ? options.in_place : options.out_of_place;
    // What has no in-place form is measured even where only that was asked for.
    if (!in_place && !InfoOf(what.operation).in_place) wanted = true;
    if (!wanted) continue;
    what.in_place = in_place;
    auto result = Measure(what, options, buffers, *job.world, control);
    if (!result.ok()) {
      return Annotate(result.status(), absl::StrCat(InfoOf(what.operation).name, " of ",
                                                    ToString(SizeOf(what, control.ranks()))));
    }
    results[in_place ? 1 : 0] = *std::move(result);
  }
  if (control.rank() == 0) report.Row(what, results[0], results[1]);
  return absl::OkStatus();
}

absl::StatusOr<int> RunRank(const Options& options) {
  WEFT_ASSIGN_OR_RETURN(Rendezvous job, Join(options.settings));
  const int rank = job.environment.rank.value(), ranks = job.environment.world_size;
  if (options.root >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--root ", options.root, " is not one of ", ranks, " ranks"));
  }
  Control control(*job.store.store, rank, ranks);
  Report report(options, ranks);
  WEFT_ASSIGN_OR_RETURN(Buffers buffers, Buffers::Allocate(options.size_max, ranks));
  if (rank == 0 && !options.show_schedule) report.Begin();
  for (Operation operation : options.operations) {
    const OperationInfo& info = InfoOf(operation);
    std::vector<Case> cases = CasesOf(info, options, ranks);
    if (options.show_schedule) {
      if (rank == 0 && !cases.empty()) ShowSchedule(cases[0], options, ranks);
      continue;
    }
    if (rank == 0) report.BeginOperation(info);
    for (const Case& what : cases) {
      WEFT_RETURN_IF_ERROR(RunCase(what, options, buffers, job, control, report));
    }
  }
  if (rank == 0 && !options.show_schedule) report.End(job.endpoint->Describe());
  WEFT_ASSIGN_OR_RETURN(auto wrong, control.Exchange({static_cast<double>(report.wrong())}));
  return wrong[0][0] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  Parsed parsed = ParseCommandLine(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  absl::StatusOr<int> status =
      parsed.options.ranks > 0
          ? absl::StatusOr<int>(BecomeLauncher(parsed.options.ranks, argc, argv))
          : RunRank(parsed.options);
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-bw: %s\n", status.status().ToString());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace weft::bw

int main(int argc, char** argv) { return weft::bw::Main(argc, argv); }
