// Which shared libraries this environment would get, tried out in child processes.
#ifndef WEFT_TOOLS_DOCTOR_LIBRARIES_H_
#define WEFT_TOOLS_DOCTOR_LIBRARIES_H_

#include <string>
#include <vector>

#include "tools/doctor/node.h"

namespace weft::doctor {

// libibverbs and NCCL.
std::vector<LibraryFound> FindLibraries();

// The libraries that NCCL 2.27 and later would try for NCCL_NET_PLUGIN=`wish` ("": not set), in
// its order, each of them loaded. Empty for "none".
std::vector<NetPlugin> FindNetPlugins(const std::string& wish);

// The names alone: "weft" gives "weft" and "libnccl-net-weft.so".
std::vector<std::string> NetPluginNames(const std::string& wish);

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_LIBRARIES_H_
