// weft-init's command line.
#ifndef WEFT_TOOLS_INIT_OPTIONS_H_
#define WEFT_TOOLS_INIT_OPTIONS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/mesh.h"

namespace weft::init {

struct Options {
  int ranks = 0;  // 0: those of the layout
  int hosts = 0;  // 0: one for 8 ranks
  std::string layout = "tp8,pp8,dp16";
  bool relay = false;
  int replace = 0;   // ranks, after the rest
  int workers = 0;   // processes; 0: as few as their file descriptors allow, at least 2
  int window = 256;  // connections that a worker has under way at once
  int sources = 8;   // loopback addresses that clients dial from
  bool model = false;
  std::string json;
  absl::Duration timeout = absl::Seconds(60);

  collectives::Mesh mesh;  // of `layout`
  int ranks_per_host() const { return (ranks + hosts - 1) / hosts; }
};

// Fills in what is 0, and checks that all fits together.
absl::Status Resolve(Options& options);
// The same layout with its last axis smaller, for the model: about `ranks` ranks.
Options Shrink(const Options& options, int factor);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_OPTIONS_H_
