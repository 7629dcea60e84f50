// Readings of a host whose /proc, /sys and /dev are files of the test, and whose exporter is a page
// of it.
#include "tools/observe/host_readings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/scratch_folder.h"
#include "tools/observe/agent.h"
#include "tools/observe/diagnose.h"
#include "tools/observe/job_view.h"

namespace weft::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kSecondNs = 1'000'000'000;

// Two ranks of one host, processes 41 and 42, that began in second 100.
class HostReadingsTest : public testing::Test {
 protected:
  HostReadingsTest() {
    for (const int rank : {0, 1}) {
      RankView& view = view_.ranks[rank];
      view.process.pid = 41 + rank;
      view.process.rank = rank;
      view.process.monotonic_ns = 100 * kSecondNs;
      view.state = {.known = true, .exists = true, .state = 'S'};
    }
    view_.world_size = 2;
    view_.now_ns = 200 * kSecondNs;
  }
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = folder_ / ("root" + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::app | std::ios::binary) << text;
  }
  void Take(HostReadings* readings) {
    std::vector<RankView*> ranks;
    for (auto& [number, rank] : view_.ranks) ranks.push_back(&rank);
    readings->Take(ranks, view_.now_ns);
  }
  std::string root() { return folder_ / "root"; }
  const Reading* Find(int rank, absl::string_view source, absl::string_view name) {
    return view_.ranks[rank].FindReading(source, name);
  }

  ScratchFolder folder_;
  JobView view_;
};

TEST_F(HostReadingsTest, AreThoseOfTheProcesssCgroupAndOfTheHostsPorts) {
  Put("/proc/41/cgroup", "0::/job/rank0\n");
  Put("/proc/42/cgroup", "4:memory:/old\n3:cpu,cpuacct:/old\n");
  Put("/sys/fs/cgroup/job/rank0/cpu.stat", "usage_usec 9\nnr_throttled 12\n");
  Put("/sys/fs/cgroup/job/rank0/memory.events", "oom 1\noom_kill 1\n");
  Put("/sys/fs/cgroup/cpu/old/cpu.stat", "nr_throttled 3\n");
  HostReadings readings(root());
  Take(&readings);
  ASSERT_NE(Find(0, "cgroup", "nr_throttled"), nullptr);
  EXPECT_EQ(Find(0, "cgroup", "nr_throttled")->last, 12);
  ASSERT_NE(Find(0, "cgroup", "oom_kill"), nullptr);
  EXPECT_EQ(Find(0, "cgroup", "oom_kill")->last, 1);
  EXPECT_EQ(Find(0, "cgroup", "usage_usec"), nullptr);
  ASSERT_NE(Find(1, "cgroup", "nr_throttled"), nullptr);
  EXPECT_EQ(Find(1, "cgroup", "nr_throttled")->last, 3);
}

TEST_F(HostReadingsTest, TakeFromTheKernelsLogWhatCameAfterTheProcessBegan) {
  Put("/dev/kmsg",
      "6,1,90000000,-;nvme nvme0: I/O 12 QID 3 timeout, aborting\n"
      "3,2,150000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=42, name=weft-train, GPU has fallen "
      "off\n"
      " SUBSYSTEM=pci\n"
      "3,3,151000000,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=41, MMU fault\n"
      "3,4,152000000,-;blk_update_request: I/O error, dev sda, sector 8\n"
      "3,5,153000000,-;Out of memory: Killed process 7 (mysqld)\n");
  HostReadings readings(root());
  Take(&readings);
  EXPECT_EQ(Find(0, "disk/nvme0", "errors"), nullptr);
  EXPECT_EQ(Find(0, "gpu/0000:3b:00", "xid"), nullptr);
  ASSERT_NE(Find(1, "gpu/0000:3b:00", "xid"), nullptr);
  EXPECT_EQ(Find(1, "gpu/0000:3b:00", "xid")->last, 79);
  EXPECT_EQ(Find(1, "gpu/0000:3b:00", "xid")->changed_ns, 150 * kSecondNs);
  EXPECT_NE(Find(0, "gpu/0000:3b:00", "program_xid"), nullptr);
  ASSERT_NE(Find(0, "disk/sda", "errors"), nullptr);
  EXPECT_EQ(Find(0, "kernel", "oom_kill"), nullptr);

  std::vector<Finding> findings = Diagnose(view_);
  ASSERT_THAT(findings, SizeIs(2));
  for (const Finding& finding : findings) {
    if (finding.fault == Fault::kDeviceError) {
      EXPECT_THAT(finding.culprits, ElementsAre(1));
      EXPECT_EQ(finding.component, Component::kDevice);
    } else {
      EXPECT_EQ(finding.fault, Fault::kHostError);
      EXPECT_EQ(finding.component, Component::kStorage);
      EXPECT_THAT(finding.culprits, ElementsAre(0, 1));
    }
  }

  Put("/dev/kmsg",
      "3,6,154000000,-;Buffer I/O error on dev sda, logical block 3\n"
      "3,7,155000000,-;Memory cgroup out of memory: Killed process 41 (weft-train)\n3,8,1560");
  Take(&readings);
  EXPECT_EQ(Find(0, "disk/sda", "errors")->grew(), 2);
  ASSERT_NE(Find(0, "kernel", "oom_kill"), nullptr);
  EXPECT_EQ(Find(1, "kernel", "oom_kill"), nullptr);
  Put("/dev/kmsg", "00000,-;EDAC MC0: 1 UE memory read error on CPU_SrcID#0\n");
  Take(&readings);
  EXPECT_NE(Find(0, "memory", "errors"), nullptr);
}

TEST(KernelLog, TroublesHaveTheirSources) {
  const auto of = [](absl::string_view text) {
    const std::optional<KernelTrouble> trouble = ParseKernelTrouble(text);
    if (!trouble.has_value()) return std::string("none");
    return absl::StrCat(trouble->source, " ", trouble->name, " ", trouble->number);
  };
  EXPECT_EQ(of("NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, DBE"),
            "gpu/0000:3b:00 xid 48");
  EXPECT_EQ(of("NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception"),
            "gpu/0000:3b:00 program_xid 13");
  EXPECT_EQ(of("NVRM: Xid without a number"), "none");
  EXPECT_EQ(of("mlx5_core 0000:08:00.0: poll_health:847: Fatal error 1 detected"),
            "nic/0000:08:00.0 errors 0");
  EXPECT_EQ(of("mlx5_core 0000:08:00.0 ens1f0np0: Link up"), "none");
  EXPECT_EQ(of("NETDEV WATCHDOG: eth0 (ice): transmit queue 3 timed out"), "nic/eth0 errors 0");
  EXPECT_EQ(of("EXT4-fs error (device sda1): ext4_find_entry:1455"), "disk/sda1 errors 0");
  EXPECT_EQ(of("XFS (nvme0n1p2): metadata I/O error in \"xfs_buf\""), "disk/nvme0n1p2 errors 0");
  EXPECT_EQ(of("nfs: server files not responding, still trying"), "disk/files errors 0");
  EXPECT_EQ(of("EDAC MC0: 1 CE memory read error"), "none");
  EXPECT_EQ(of("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [weft-train:41]"),
            "cpu lockups 0");
  EXPECT_EQ(of("mce: [Hardware Error]: CPU 2: Machine Check: Uncorrected error"), "cpu errors 0");
  EXPECT_EQ(of("systemd[1]: Started Journal Service."), "none");
}

TEST(KernelLog, RecordsThatAreNoneAreLeftOut) {
  EXPECT_FALSE(ParseKernelRecord("").has_value());
  EXPECT_FALSE(ParseKernelRecord(" SUBSYSTEM=pci;1").has_value());
  EXPECT_FALSE(ParseKernelRecord("6,1,-5,-;text").has_value());
  EXPECT_FALSE(ParseKernelRecord("6,1,9223372036854775807,-;text").has_value());
  EXPECT_FALSE(ParseKernelRecord("6;text").has_value());
  ASSERT_TRUE(ParseKernelRecord("6,1,5,-;a;b").has_value());
  EXPECT_EQ(ParseKernelRecord("6,1,5,-;a;b")->text, "a;b");
  EXPECT_THAT(KernelLog("/nonexistent/kmsg").Read(), IsEmpty());
}

constexpr absl::string_view kDcgmPage =
    "# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).\n"
    "# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
    "DCGM_FI_DEV_SM_CLOCK{gpu=\"0\",UUID=\"GPU-1\",Hostname=\"a\"} 1980\n"
    "DCGM_FI_DEV_SM_CLOCK{UUID=\"GPU-2\",gpu=\"3\",Hostname=\"a}\"} 1200 1700000000\n"
    "DCGM_FI_DEV_XID_ERRORS{gpu=\"3\",err_msg=\"\"} 79\n"
    "DCGM_FI_DEV_GPU_TEMP{gpu=\"3\"} 9223372036854775794\n"
    "DCGM_FI_DEV_POWER_USAGE{gpu=\"3\"} 400\n"
    "DCGM_FI_DEV_XID_ERRORS{gpu=\"x\"} 79\nDCGM_FI_DEV_XID_ERRORS} {\n";

TEST(Dcgm, TakesTheValuesThatARuleGoesBy) {
  std::vector<std::string> values;
  for (const DeviceValue& value : ParseDcgmPage(kDcgmPage)) {
    values.push_back(absl::StrCat(value.device, " ", value.name, " ", value.value));
  }
  EXPECT_THAT(values, ElementsAre("0 DCGM_FI_DEV_SM_CLOCK 1980", "3 DCGM_FI_DEV_SM_CLOCK 1200",
                                  "3 DCGM_FI_DEV_XID_ERRORS 79"));
}

TEST(Dcgm, AProcesssDeviceIsThatOfItsEnvironment) {
  const auto of = [](std::initializer_list<const char*> words) {
    std::string environment;
    for (const char* word : words) environment.append(word).push_back('\0');
    return DeviceOfEnvironment(environment);
  };
  EXPECT_EQ(of({}), -1);
  EXPECT_EQ(of({"LOCAL_RANK=2"}), 2);
  EXPECT_EQ(of({"CUDA_VISIBLE_DEVICES=4,5,6", "LOCAL_RANK=2"}), 6);
  EXPECT_EQ(of({"CUDA_VISIBLE_DEVICES=5"}), 5);
  EXPECT_EQ(of({"CUDA_VISIBLE_DEVICES=5", "LOCAL_RANK=3"}), 5);
  EXPECT_EQ(of({"CUDA_VISIBLE_DEVICES=", "LOCAL_RANK=0"}), -1);
  EXPECT_EQ(of({"CUDA_VISIBLE_DEVICES=1,2", "LOCAL_RANK=2"}), -1);
  EXPECT_EQ(of({"CUDA_VISIBLE_DEVICES=GPU-1f", "LOCAL_RANK=0"}), -1);
}

TEST_F(HostReadingsTest, TakeTheDevicesThatAnExporterServes) {
  auto server = HttpServer::Listen({.address = {"127.0.0.1", "0"}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::string asked;
  std::jthread serving([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      server->Turn(
          [&](const HttpRequest& request) {
            asked = request.path;
            return HttpResponse{.body = std::string(kDcgmPage)};
          },
          absl::Milliseconds(10));
    }
  });
  Put("/proc/41/environ", std::string("LOCAL_RANK=3\0", 13));
  HostReadings readings(root(), absl::StrCat("127.0.0.1:", server->port()));
  // An exporter that a loaded machine keeps from answering in a fifth of a second is asked again.
  for (int times = 0; times < 20 && Find(0, "gpu/3", "DCGM_FI_DEV_XID_ERRORS") == nullptr;
       ++times) {
    Take(&readings);
    view_.now_ns += 40 * kSecondNs;
  }
  serving = {};
  EXPECT_EQ(asked, "/metrics");
  ASSERT_NE(Find(0, "gpu/3", "DCGM_FI_DEV_SM_CLOCK"), nullptr);
  EXPECT_EQ(Find(0, "gpu/3", "DCGM_FI_DEV_SM_CLOCK")->last, 1200);
  EXPECT_EQ(Find(0, "gpu/0", "DCGM_FI_DEV_SM_CLOCK"), nullptr);
  // The other rank's environment names no device, so that it gets the readings of all.
  EXPECT_NE(Find(1, "gpu/0", "DCGM_FI_DEV_SM_CLOCK"), nullptr);
}

}  // namespace
}  // namespace weft::observe
