// What is measured, between whom, and what is done with the result.
#ifndef WEFT_TOOLS_BW_LINK_OPTIONS_H_
#define WEFT_TOOLS_BW_LINK_OPTIONS_H_

#include <string>

#include "base/settings.h"
#include "tools/bw/link/load.h"

namespace weft::link_bw {

inline constexpr int kStandardPort = 18515;  // perftest's

struct Options {
  Load load;
  int ranks = 0;     // above 0: start them here
  std::string host;  // of the server; empty: the job that the environment names, else be the server
  int port = kStandardPort;
  std::string listen = "127.0.0.1";  // the server's address for its client
  // "@FILE" with what server and client share; empty: WEFT_JOB_SECRET, or the server draws it.
  std::string key;
  bool gbits = false;
  bool lanes = false;                 // a row a lane after every size
  double min_gbps = 0, max_usec = 0;  // limits; 0: none
  std::string json;                   // a file, "-": standard output and no table
  // Prefix of keys in the job's store: a job that measures several times gives each another.
  std::string meeting = "weft-bw-link";
  Settings settings{LibrarySettings()};
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_OPTIONS_H_
