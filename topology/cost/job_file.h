// The description of a job (job.h), from a TOML file and from the command line. Both forms have
// the same keys; what the command line says of a key goes before the file.
//
//   name = "gpt"                 # optional
//   [layout]
//   tensor = 8                   # axes that are not named are 1
//   data = 192
//   pipeline = 8
//   nesting = ["tensor", "context", "expert", "data", "pipeline"]   # fastest first; the default
//   [node]
//   gpus = 8                     # default: one a NIC
//   nvlink = "300GB/s"
//   [model]                      # derives the traffic ...
//   preset = "gpt-175b"          # then keys of TrainingSetup and its ModelShape
//   zero = 2
//   [[traffic]]                  # ... and this is added to it, or replaces what has its name
//   name = "gradients"
//   axes = ["data"]
//   collective = "reduce_scatter"
//   bytes = "5.5GB"
//   exposed = 0.17
//
// On the command line a section is one text of the same keys, "tensor=8,data=192"; nesting and axes
// are joined by "-" there: "nesting=tp-cp-ep-dp-pp".
//
// Every error names the file and line, or the option, the key, the value, and what would be right.
#ifndef WEFT_TOPOLOGY_COST_JOB_FILE_H_
#define WEFT_TOPOLOGY_COST_JOB_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cost/job.h"

namespace weft::topology {

// What the command line adds to a file, or says without one. Empty texts say nothing.
struct JobWords {
  std::string layout, node, model;
  std::vector<std::string> traffic;
};

// `path` may be empty: then the words alone.
absl::StatusOr<Job> LoadJob(const std::string& path, const JobWords& words);
// For tests and fuzzers: the file's content, under a name for messages.
absl::StatusOr<Job> ParseJob(const std::string& toml, const std::string& name,
                             const JobWords& words);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_JOB_FILE_H_
