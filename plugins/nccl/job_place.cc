#include "plugins/nccl/job_place.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace weft::nccl {
namespace {

std::optional<int> Number(const char* variable) {
  const char* text = std::getenv(variable);
  int number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number) || number < 0) return std::nullopt;
  return number;
}

}  // namespace

JobPlace PlaceFromEnvironment() {
  JobPlace place;
  // The innermost launcher first: torchrun under Slurm numbers processes, Slurm hosts.
  struct Names {
    const char *rank, *world_size;
  };
  constexpr Names kLaunchers[] = {{"RANK", "WORLD_SIZE"},
                                  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                  {"PMI_RANK", "PMI_SIZE"},
                                  {"SLURM_PROCID", "SLURM_NTASKS"}};
  for (const Names& names : kLaunchers) {
    const std::optional<int> rank = Number(names.rank), size = Number(names.world_size);
    if (!rank.has_value() || !size.has_value() || *rank >= *size) continue;
    place.rank = rank;
    place.world_size = *size;
    break;
  }
  for (const char* name :
       {"WEFT_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"}) {
    const char* text = std::getenv(name);
    // "none" is what torchrun says when it was given none.
    if (text == nullptr || *text == '\0' || absl::string_view(text) == "none") continue;
    place.job = text;
    break;
  }
  return place;
}

}  // namespace weft::nccl
