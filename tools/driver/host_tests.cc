#include "tools/driver/host_tests.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/rendezvous/job_environment.h"
#include "net/verbs/verbs.h"
#include "tools/bw/link/measurement.h"
#include "tools/bw/measure.h"
#include "tools/bw/operation.h"
#include "tools/doctor/examination.h"
#include "tools/driver/link_tests.h"
#include "tools/job/job.h"
#include "tools/run/launcher.h"

namespace weft::driver {
namespace {

constexpr Bytes kMessage = MiB(1);
constexpr absl::Duration kFlowTime = absl::Milliseconds(200);
constexpr int kOperations = 8;

// Adds up the bytes that were wrong.
class WrongBytes final : public link_bw::MeasurementObserver {
 public:
  void OnBegin(const link_bw::Load&, int, bool, size_t, const std::string&) override {}
  void OnSize(Bytes) override {}
  void OnRow(const link_bw::Row& row, bool) override {
    for (const link_bw::FlowResult& flow : row.flows) messages_ += flow.wrong;
  }
  int64_t messages() const { return messages_; }

 private:
  int64_t messages_ = 0;
};

// The usable RDMA ports of each process of the job, such as "mlx5_0:1". Meets them within
// `patience`.
absl::StatusOr<std::vector<std::vector<std::string>>> PortsOfAll(
    const Settings& settings, const collectives::JobEnvironment& environment,
    absl::Duration patience) {
  const SystemClock clock;
  const absl::Time end = clock.Now() + patience;
  std::string mine;
  const auto ports = net::ListVerbsPorts(settings);
  if (absl::IsInvalidArgument(ports.status())) return ports.status();
  if (ports.ok()) {  // else there are none
    for (const net::VerbsPort& port : *ports) {
      absl::StrAppend(&mine, mine.empty() ? "" : ",", port.device, ":", port.port);
    }
  }
  WEFT_ASSIGN_OR_RETURN(const collectives::JobStore store,
                        collectives::StoreFromEnvironment(environment, patience));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        store.store->AllGather("self-test/ports", environment.rank.value(),
                                               environment.world_size, mine, end - clock.Now()));
  std::vector<std::vector<std::string>> all;
  for (const std::string& text : texts) all.push_back(absl::StrSplit(text, ',', absl::SkipEmpty()));
  return all;
}

absl::Status TestLink(Settings settings, const LinkTest& test, size_t number) {
  link_bw::Options options;
  options.meeting = absl::StrCat("self-test/links/", number);
  options.load.pattern = link_bw::Pattern::kAllPairs;
  options.load.sizes = {kMessage};
  options.load.duration = kFlowTime;
  options.load.check = true;
  WEFT_ASSIGN_OR_RETURN(options.load.transport,
                        link_bw::ParseTransport("transport", test.transport));
  if (!test.device.empty()) {
    WEFT_RETURN_IF_ERROR(settings.Set("verbs.devices", test.device, "the self-test"));
  }
  options.settings = std::move(settings);
  WrongBytes wrong;
  WEFT_RETURN_IF_ERROR(link_bw::MeasureLinks(options, wrong));
  if (wrong.messages() == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(wrong.messages(), " messages came with a wrong byte"));
}

// Over what was tested: "tcp, verbs =mlx5_0:1". `ports`: PortsOfAll().
absl::StatusOr<std::string> TestLinks(const Settings& settings,
                                      const std::vector<std::vector<std::string>>& ports,
                                      size_t self) {
  const std::vector<LinkTest> tests = LinkTestsOf(settings.Text("transport"), ports, self);
  std::string tested;
  for (size_t i = 0; i < tests.size(); ++i) {
    const std::string name = tests[i].device.empty()
                                 ? tests[i].transport
                                 : absl::StrCat(tests[i].transport, " ", tests[i].device);
    const absl::Status passed = TestLink(settings, tests[i], i);
    if (!passed.ok()) return Annotate(passed, absl::StrCat("over ", name));
    absl::StrAppend(&tested, i == 0 ? "" : ", ", name);
  }
  return tested;
}

absl::Status TestCollective(bw::Operation operation, job::Joined& job, bw::Control& control) {
  bw::Options options;
  options.iterations = kOperations;
  options.size_max = kMessage;
  WEFT_ASSIGN_OR_RETURN(bw::Buffers buffers,
                        bw::Buffers::Allocate(kMessage, control.ranks(), job.endpoint.get()));
  const bw::Case what{
      .operation = operation,
      .count = CountFor(operation, collectives::DataType::kFloat32, kMessage, control.ranks())};
  const std::vector<std::vector<bw::GroupRun>> ways = {{{job.world.get(), &buffers}}};
  WEFT_ASSIGN_OR_RETURN(const std::vector<bw::Result> results,
                        bw::Measure(what, options, ways, *job.world, control));
  if (results[0].wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(results[0].wrong, " elements are wrong"));
}

// What the processes do once they have met.
absl::StatusOr<std::string> TestMet(Settings settings,
                                    const std::vector<std::vector<std::string>>& ports, size_t self,
                                    absl::Duration patience) {
  // A way on which nothing comes through is to be named before the test is cut off.
  const absl::Duration connect = std::min(settings.Duration("transport.connect_timeout"),
                                          std::max(patience / 2, absl::Milliseconds(100)));
  for (const auto& [name, limit] :
       {std::pair("store.timeout", patience), std::pair("transport.connect_timeout", connect)}) {
    WEFT_RETURN_IF_ERROR(settings.Set(name, absl::FormatDuration(limit), "the self-test"));
  }
  const absl::StatusOr<std::string> links = TestLinks(settings, ports, self);
  if (!links.ok()) return Annotate(links.status(), "bytes between the processes");
  WEFT_ASSIGN_OR_RETURN(job::Joined job, job::Join(settings, "weft-executor"));
  bw::Control control(*job.store, job.environment.rank.value(), job.environment.world_size);
  for (const bw::Operation operation : {bw::Operation::kAllToAll, bw::Operation::kAllReduce}) {
    absl::Status passed = TestCollective(operation, job, control);
    if (!passed.ok()) return Annotate(passed, bw::InfoOf(operation).name);
  }
  return absl::StrCat("links over ", *links, ", all-to-all and all-reduce of ", control.ranks(),
                      " processes");
}

}  // namespace

absl::Status TestHost() {
  WEFT_ASSIGN_OR_RETURN(const doctor::HostExamination host,
                        doctor::ExamineHost("", absl::ZeroDuration()));
  for (const doctor::Finding& finding : host.findings) {
    if (finding.severity != doctor::Severity::kError) continue;
    return absl::FailedPreconditionError(absl::StrCat(finding.subject, ": ", finding.sentence));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> TestWithinHost(int processes) {
  std::error_code error;
  run::RunOptions options;
  options.ranks = processes;
  options.job = absl::StrCat("self-test-", getpid());
  options.output = run::OutputMode::kNone;
  options.command = {std::filesystem::read_symlink("/proc/self/exe", error).string(),
                     "--self-test-part", "group"};
  options.grace = absl::ZeroDuration();
  if (error) return ErrnoStatus(error.value(), "read /proc/self/exe");
  return run::RunJob(options);
}

absl::StatusOr<std::string> TestGroup(absl::Duration patience) {
  WEFT_ASSIGN_OR_RETURN(Settings settings, Settings::FromEnvironment());
  WEFT_ASSIGN_OR_RETURN(const collectives::JobEnvironment environment,
                        collectives::JobEnvironment::FromEnvironment());
  const auto ports = PortsOfAll(settings, environment, patience);
  if (!ports.ok()) return Annotate(ports.status(), "meet the other processes");
  // All are there: what takes too long from here on has failed.
  absl::StatusOr<std::string> tested =
      TestMet(settings, *ports, static_cast<size_t>(environment.rank.value()), patience);
  if (!absl::IsDeadlineExceeded(tested.status())) return tested;
  return absl::UnavailableError(tested.status().message());
}

}  // namespace weft::driver
