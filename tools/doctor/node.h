// All that the doctor looks at on one host, as values: read once, judged afterwards (checks.h).
#ifndef WEFT_TOOLS_DOCTOR_NODE_H_
#define WEFT_TOOLS_DOCTOR_NODE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "net/roce/devices.h"
#include "topology/host/machine.h"

namespace weft::doctor {

struct Limits {
  std::optional<Bytes> locked_memory;  // RLIMIT_MEMLOCK; nothing: unlimited
  std::optional<int64_t> open_files;   // RLIMIT_NOFILE; nothing: unlimited
  std::optional<Bytes> cgroup_memory;  // memory.max of our control group; nothing: none
  std::optional<Bytes> shared_memory;  // size of /dev/shm; nothing: there is none
  Bytes shared_memory_free;
};

// How NICs of this host would reach GPU memory.
struct GpuDirect {
  std::string peer_memory;   // net::PeerMemoryModule(); empty: none is loaded
  bool open_driver = false;  // NVIDIA's open kernel modules, which export DMA-BUF
  std::string driver;        // /proc/driver/nvidia/version's first line; empty: no driver
};

// A shared library as the dynamic linker would find it.
struct LibraryFound {
  std::string name;     // "libibverbs.so.1"
  std::string path;     // empty: not found
  std::string version;  // where the library tells
  std::string error;    // the linker's words, when not found
};

// One name that NCCL would try for its network.
struct NetPlugin {
  std::string name;                 // as NCCL tries it: "libnccl-net-weft.so"
  std::string path;                 // empty: not found
  std::vector<std::string> tables;  // "v12", ...: the net tables that it exports, newest first
  std::string error;
};

struct Node {
  std::string host, kernel;
  std::vector<net::RdmaDevice> devices;
  bool device_folder = false;             // /dev/infiniband is there
  std::vector<std::string> device_nodes;  // those of it that may be opened: "uverbs0"
  std::optional<topology::Machine> machine;
  Limits limits;
  GpuDirect gpu_direct;
  std::vector<LibraryFound> libraries;
  std::string plugin_wish;                         // NCCL_NET_PLUGIN; empty: not set
  std::vector<NetPlugin> plugins;                  // in the order that NCCL tries them
  std::map<std::string, std::string> environment;  // NCCL_*, UCX_* and WEFT_*, without the secret
  std::string settings_error;                      // of WEFT_*; empty: none
};

// kInvalidArgument: there is no copy of a host below `root`.
absl::Status CheckRoot(const std::string& root);

// `root` is put before /sys, /proc and /dev for what is read from files; limits, libraries and the
// machine (hwloc) are always this process's. Takes up to a second: libraries are loaded in child
// processes, so that none can harm this one. Errors: CheckRoot()'s.
absl::StatusOr<Node> ReadNode(const std::string& root = "");

// The counters of every port, by "mlx5_0:1".
using PortCounters = std::map<std::string, std::map<std::string, int64_t>>;
PortCounters CountersOf(const std::vector<net::RdmaDevice>& devices);

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_NODE_H_
