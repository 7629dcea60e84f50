// A /sys with the RDMA devices of a training server: mlx5 on RoCE, one of two rails a folder.
#ifndef WEFT_TESTS_NET_ROCE_SYS_FOLDER_H_
#define WEFT_TESTS_NET_ROCE_SYS_FOLDER_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/scratch_folder.h"

namespace weft::net {

// Adds device mlx5_<index> with interface ens<index>, address 10.1.<index>.1, everything in order.
inline void AddMlx5(ScratchFolder& root, int index) {
  const std::string name = absl::StrCat("mlx5_", index), net = absl::StrCat("ens", index);
  const std::string pci = absl::StrCat("sys/devices/pci0000:00/0000:", 10 + index, ":00.0/");
  const std::string device = pci + "infiniband/" + name + "/", port = device + "ports/1/";
  root.Write(pci + "numa_node", absl::StrCat(index % 2, "\n"));
  root.Write(pci + "vendor", "0x15b3\n");
  root.Write(device + "fw_ver", "28.39.1002\n");
  root.Write(device + "board_id", "MT_0000000838\n");
  root.Write(device + "node_guid", absl::StrCat("b8ce:f603:00a1:000", index, "\n"));
  root.Link(device + "device", pci);
  root.Write(port + "state", "4: ACTIVE\n");
  root.Write(port + "phys_state", "5: LinkUp\n");
  root.Write(port + "link_layer", "Ethernet\n");
  root.Write(port + "rate", "400 Gb/sec (4X NDR)\n");
  const std::string ipv4 = absl::StrCat("0000:0000:0000:0000:0000:ffff:0a01:0", index, "01\n");
  const char* const types[] = {"IB/RoCE v1\n", "RoCE v2\n"};
  for (int gid = 0; gid < 4; ++gid) {
    root.Write(absl::StrCat(port, "gids/", gid),
               gid < 2 ? "fe80:0000:0000:0000:bace:f6ff:fea1:0001\n" : ipv4);
    root.Write(absl::StrCat(port, "gid_attrs/types/", gid), types[gid % 2]);
    root.Write(absl::StrCat(port, "gid_attrs/ndevs/", gid), net + "\n");
  }
  root.Write(port + "gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  root.Write(port + "counters/port_rcv_data", "123456789\n");
  root.Write(port + "counters/symbol_error", "0\n");
  root.Write(port + "hw_counters/out_of_sequence", "0\n");
  root.Write(device + "tc/1/traffic_class", "Global tclass=106\n");
  root.Link("sys/class/infiniband/" + name, device);
  root.Write(pci + "net/" + net + "/mtu", "9000\n");
  root.Write(pci + "net/" + net + "/operstate", "up\n");
  for (const char* point : {"roce_np", "roce_rp"}) {
    for (int priority = 0; priority < 8; ++priority) {
      root.Write(absl::StrCat(pci, "net/", net, "/ecn/", point, "/enable/", priority),
                 priority == 3 ? "1\n" : "0\n");
    }
  }
  root.Write(pci + "net/" + net + "/ecn/roce_np/min_time_between_cnps", "4\n");
  root.Write(pci + "net/" + net + "/ecn/roce_rp/rpg_ai_rate", "5\n");
  root.Link("sys/class/net/" + net, pci + "net/" + net);
  root.Write(absl::StrCat("sys/class/infiniband_verbs/uverbs", index, "/ibdev"), name + "\n");
  root.Write(absl::StrCat("dev/infiniband/uverbs", index), "");
}

// The folder of that device's port 1.
inline std::string PortFolder(int index) {
  return absl::StrCat("sys/class/infiniband/mlx5_", index, "/ports/1/");
}

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_ROCE_SYS_FOLDER_H_
