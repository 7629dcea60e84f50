// The command line of `weft-bw link`. Names follow perftest, then ucx_perftest, where they mean the
// same.
#ifndef WEFT_TOOLS_BW_LINK_COMMAND_LINE_H_
#define WEFT_TOOLS_BW_LINK_COMMAND_LINE_H_

#include "tools/bw/link/options.h"

namespace weft::link_bw {

// As a sorted-out command line, or the exit status of a program that is done. `argv` begins with
// the word "link".
struct Parsed {
  Options options;
  int exit_status = -1;  // -1: go on
};
Parsed ParseCommandLine(int argc, char** argv);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_COMMAND_LINE_H_
