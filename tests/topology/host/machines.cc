#include "tests/topology/host/machines.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "topology/host/hwloc_xml.h"

namespace weft::topology {
namespace {

int next_gp_index = 1000;

std::string Cpus(long first, long count) {
  std::string text;
  for (long word = (first + count - 1) / 32; word >= 0; --word) {
    uint32_t bits = 0;
    for (long bit = 0; bit < 32; ++bit) {
      const long cpu = word * 32 + bit;
      if (cpu >= first && cpu < first + count) bits |= uint32_t{1} << bit;
    }
    absl::StrAppend(&text, text.empty() ? "" : ",", absl::StrFormat("0x%08x", bits));
  }
  return text;
}

std::string PciText(const PciPart& part) {
  std::string text = absl::StrFormat(
      R"(<object type="%s" gp_index="%d" %spci_busid="%s" pci_type="%s" pci_link_speed="%.6f">)",
      part.bridge ? "Bridge" : "PCIDev", next_gp_index++,
      part.bridge ? R"(bridge_type="1-1" depth="1" bridge_pci="0000:[00-ff]" )" : "", part.busid,
      part.type, part.gigabytes);
  absl::StrAppend(&text, "\n", part.os_devices);
  for (const PciPart& child : part.children) absl::StrAppend(&text, PciText(child));
  return absl::StrCat(text, "</object>\n");
}

std::string HostBridge(const std::vector<PciPart>& parts) {
  std::string text = absl::StrFormat(
      "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
      "bridge_pci=\"0000:[00-ff]\">\n",
      next_gp_index++);
  for (const PciPart& part : parts) absl::StrAppend(&text, PciText(part));
  return absl::StrCat(text, "</object>\n");
}

std::string OsDevice(const std::string& name, int type, const std::string& inner = "") {
  return absl::StrFormat(
      "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" osdev_type=\"%d\">%s</object>\n",
      next_gp_index++, name, type, inner);
}

std::string Info(const std::string& name, const std::string& value) {
  return absl::StrFormat("<info name=\"%s\" value=\"%s\"/>", name, value);
}

}  // namespace

PciPart GpuPart(const std::string& busid, double gigabytes) {
  return {busid, "0302 [10de:2330] [10de:16c1] a1", gigabytes, false, "", {}};
}

PciPart NicPart(const std::string& busid, const std::string& rdma, const std::string& interface,
                double gigabytes) {
  PciPart part{busid, "0200 [15b3:1021] [15b3:0041] 00", gigabytes, false, "", {}};
  if (!interface.empty()) part.os_devices += OsDevice(interface, 2);
  if (!rdma.empty()) {
    part.os_devices +=
        OsDevice(rdma, 3, Info("NodeGUID", "506b:4b03:00ab:1234") + Info("Port1State", "4"));
  }
  return part;
}

PciPart StoragePart(const std::string& busid) {
  return {busid, "0108 [144d:a80a] [144d:aa8b] 00", 7.876923, false, OsDevice("nvme0n1", 0), {}};
}

PciPart SwitchPart(const std::string& busid, const std::string& downstream,
                   std::vector<PciPart> children) {
  PciPart upstream{busid, "0604 [1000:c030] [1000:2004] b0", 31.507692, true, "", {}};
  for (size_t i = 0; i < children.size(); ++i) {
    PciPart port{absl::StrFormat("0000:%s:%02x.0", downstream, i),
                 "0604 [1000:c030] [1000:2004] b0",
                 31.507692,
                 true,
                 "",
                 {children[i]}};
    upstream.children.push_back(std::move(port));
  }
  return upstream;
}

PciPart RootPort(const std::string& busid, PciPart child) {
  return {busid, "0604 [8086:352a] [8086:0000] 04", 31.507692, true, "", {std::move(child)}};
}

std::string TestMachine::ToXml() const {
  const int pus = cores_per_numa * pus_per_core;
  const int per_package = pus * numa_per_package;
  auto set = [](int first, int count) {
    return absl::StrCat("cpuset=\"", Cpus(first, count), "\"");
  };
  std::string text = absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n",
      "<object type=\"Machine\" os_index=\"0\" ", set(0, per_package * packages), ">\n",
      Info("HostName", "node7"), Info("Architecture", "x86_64"), "\n");
  auto devices_of = [&](int numa) {
    std::string all;
    for (const auto& [where, parts] : pci) {
      if (where == numa) all += HostBridge(parts);
    }
    return all;
  };
  for (int p = 0; p < packages; ++p) {
    absl::StrAppend(&text, "<object type=\"Package\" os_index=\"", p, "\" ",
                    set(p * per_package, per_package), ">\n", Info("CPUVendor", vendor),
                    Info("CPUFamilyNumber", absl::StrCat(family)),
                    Info("CPUModelNumber", absl::StrCat(model)), "\n");
    for (int n = 0; n < numa_per_package; ++n) {
      const int numa = p * numa_per_package + n;
      const int first = numa * pus;
      const std::string memory =
          memory_per_numa > 0 ? absl::StrCat(" local_memory=\"", memory_per_numa, "\"") : "";
      absl::StrAppend(&text, "<object type=\"Group\" ", set(first, pus),
                      ">\n<object type=\"NUMANode\" os_index=\"", numa, "\" ", set(first, pus),
                      memory, "/>\n<object type=\"L3Cache\" ", set(first, pus),
                      " cache_size=\"33554432\" depth=\"3\" cache_type=\"0\">\n");
      for (int c = 0; c < cores_per_numa; ++c) {
        absl::StrAppend(&text, "<object type=\"Core\" os_index=\"", c, "\" ",
                        set(first + c * pus_per_core, pus_per_core), ">");
        for (int u = 0; u < pus_per_core; ++u) {
          absl::StrAppend(&text, "<object type=\"PU\" os_index=\"", first + c * pus_per_core + u,
                          "\" ", set(first + c * pus_per_core + u, 1), "/>");
        }
        absl::StrAppend(&text, "</object>\n");
      }
      absl::StrAppend(&text, "</object>\n", devices_of(numa), "</object>\n");
    }
    absl::StrAppend(&text, "</object>\n");
  }
  return absl::StrCat(text, devices_of(-1), "</object>\n", distances, "</topology>\n");
}

TestMachine DgxLike() {
  TestMachine machine;
  for (int package = 0; package < 2; ++package) {
    std::vector<PciPart> ports;
    for (int half = 0; half < 2; ++half) {
      const int bus = package * 0x80 + half * 0x20;  // 10, 30, 90, b0
      auto at = [&](int offset) { return absl::StrFormat("%02x", bus + offset); };
      const int nic = package * 4 + half * 2;
      ports.push_back(RootPort(
          absl::StrFormat("0000:%s:01.0", at(0)),
          SwitchPart(absl::StrFormat("0000:%s:00.0", at(1)), at(2),
                     {GpuPart(absl::StrFormat("0000:%s:00.0", at(3))),
                      NicPart(absl::StrFormat("0000:%s:00.0", at(4)), absl::StrCat("mlx5_", nic),
                              absl::StrCat("ens", nic)),
                      GpuPart(absl::StrFormat("0000:%s:00.0", at(5))),
                      NicPart(absl::StrFormat("0000:%s:00.0", at(6)),
                              absl::StrCat("mlx5_", nic + 1), absl::StrCat("ens", nic + 1)),
                      StoragePart(absl::StrFormat("0000:%s:00.0", at(7)))})));
    }
    machine.pci.push_back({package, std::move(ports)});
  }
  return machine;
}

TestMachine DualSocket() {
  TestMachine machine;
  machine.pci.push_back(
      {0,
       {RootPort("0000:16:01.0", SwitchPart("0000:17:00.0", "18",
                                            {GpuPart("0000:19:00.0"), GpuPart("0000:1a:00.0"),
                                             NicPart("0000:1b:00.0", "mlx5_0", "ens1")}))}});
  machine.pci.push_back({1, {RootPort("0000:80:01.0", NicPart("0000:81:00.0", "mlx5_1", "ens2"))}});
  return machine;
}

TestMachine CloudVm() {
  TestMachine machine;
  machine.packages = 2;
  machine.pci.push_back(
      {-1,
       {GpuPart("0000:00:04.0", 0),
        {"0000:00:05.0", "0200 [1af4:1041] [1af4:1041] 01", 0, false, OsDevice("eth0", 2), {}}}});
  return machine;
}

TestMachine AmdFourNodes() {
  TestMachine machine;
  machine.vendor = "AuthenticAMD";
  machine.family = 25;
  machine.model = 17;
  machine.numa_per_package = 4;
  machine.cores_per_numa = 2;
  for (int numa = 0; numa < 8; numa += 2) {
    const std::string bus = absl::StrFormat("%02x", 0x10 + numa * 0x10);
    const std::string next = absl::StrFormat("%02x", 0x11 + numa * 0x10);
    const std::string last = absl::StrFormat("%02x", 0x12 + numa * 0x10);
    machine.pci.push_back({numa,
                           {RootPort(absl::StrCat("0000:", bus, ":01.1"),
                                     GpuPart(absl::StrCat("0000:", next, ":00.0"))),
                            RootPort(absl::StrCat("0000:", bus, ":03.1"),
                                     NicPart(absl::StrCat("0000:", last, ":00.0"),
                                             absl::StrCat("mlx5_", numa / 2), ""))}});
  }
  return machine;
}

Machine Load(const TestMachine& machine) {
  absl::StatusOr<Machine> loaded = MachineFromHwlocXml(machine.ToXml());
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

}  // namespace weft::topology
