// An agent and its client, over a socket: what is known of a host reaches those who look from
// another.
#include "tools/observe/agent.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/records.h"
#include "tests/scratch_folder.h"
#include "tools/observe/agent_client.h"
#include "tools/observe/ring_changes.h"

namespace weft::observe {
namespace {

// The records of the only rank of a job.
absl::StatusOr<std::unique_ptr<Records>> OpenRecords(const ScratchFolder& folder) {
  RecordOptions options;
  options.folder = folder.path();
  options.job = "job";
  options.rank = 0;
  options.world_size = 1;
  return Records::Open(options);
}

TEST(Agent, TellsTheReadingsOfItsHostsRanks) {
  ScratchFolder here, elsewhere;
  auto records = OpenRecords(here);
  ASSERT_TRUE(records.ok()) << records.status();
  const int64_t now_ns = SystemClock::Nanoseconds();
  for (const int value : {3, 5}) {
    (*records)->Say(absl::StrCat("reading ", now_ns + value, " nic/a/1 link_downed ", value));
    (*records)->Say(absl::StrCat("reading ", now_ns + value, " nic/a/1 port_active 1"));
    (*records)->Say(absl::StrCat("reading ", now_ns + value, " gpu/0 DCGM_FI_DEV_GPU_TEMP 90"));
  }
  AgentOptions agent_options;
  agent_options.folder = here.path();
  agent_options.server.address = {"127.0.0.1", "0"};
  auto agent = Agent::Start(agent_options);
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::jthread turning([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) (*agent)->Turn();
  });

  AgentClient client({"127.0.0.1", absl::StrCat((*agent)->port())}, "", elsewhere.path(), 0);
  const absl::Status fetched = client.Fetch();
  ASSERT_TRUE(fetched.ok()) << fetched;
  ASSERT_EQ(client.told().size(), 1u);
  const auto& [path, told] = *client.told().begin();
  ASSERT_EQ(told.readings.size(), 2u);  // a port that has not changed is left out
  const auto downed = told.readings.find({"nic/a/1", "link_downed"});
  ASSERT_NE(downed, told.readings.end());
  EXPECT_EQ(downed->second.grew(), 2);
  EXPECT_EQ(downed->second.changed_ns, now_ns + 5 + told.shift_ns);

  JobWatch watch(elsewhere.path(), "job");
  JobWatch::Told changed = told;
  changed.readings[{"kernel", "oom_kill"}] = {.first = 0, .last = 1, .changed_ns = 7};
  watch.Tell(path, changed);
  watch.Update(/*live=*/true, now_ns);
  ASSERT_EQ(watch.view().ranks.size(), 1u);
  const Reading* killed = watch.view().ranks.at(0).FindReading("kernel", "oom_kill");
  ASSERT_NE(killed, nullptr);
  EXPECT_EQ(killed->last, 1);
}

// What answers is whatever has an agent's port by now: each of `answers` once, and a ring's bytes.
TEST(Agent, AnAnswerWhoseMembersHaveWrongTypesIsReadAsOneWithoutThem) {
  ScratchFolder here, elsewhere;
  auto records = OpenRecords(here);
  ASSERT_TRUE(records.ok()) << records.status();
  const std::filesystem::path file = std::filesystem::directory_iterator(here.path())->path();
  const std::string name = absl::StrCat(R"({"name":")", file.filename().string(), R"(",)");
  const std::vector<std::string> answers = {
      absl::StrCat(R"({"now_ns":1,"rings":[)", name, R"("exists":true,"state":"R",)",
                   R"("resident_bytes":7,"readings":[["a","b",1,2,3]]}]})"),
      R"({"now_ns":"x","rings":[]})", R"({"now_ns":-9223372036854775808,"rings":[7,{"name":1}]})",
      absl::StrCat(R"({"rings":[)", name, R"("exists":1,"state":[],"cpu_seconds":"x",)",
                   R"("run_queue_seconds":{},"resident_bytes":1.5,"minor_faults":true,)",
                   R"("major_faults":null,"readings":[["a","b",1,2,9223372036854775807]]}]})")};
  HttpServerOptions options;
  options.address = {"127.0.0.1", "0"};
  auto server = HttpServer::Listen(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto answer = [&, next = size_t{0}](const HttpRequest& request) mutable {
    if (request.path == "/rings") return HttpResponse{.body = answers[next++ % answers.size()]};
    const std::vector<std::string> words = absl::StrSplit(request.path, '@');  // /changes/NAME@...
    const std::string changes = ChangesSince(file.string(), *ParseCursor(words.back())).value();
    std::string body(sizeof(uint64_t), '\0');
    const uint64_t size = changes.size();
    std::memcpy(body.data(), &size, sizeof(size));
    return HttpResponse{.body = body + changes};
  };
  std::jthread turning([&, answer](const std::stop_token& stop) {
    const HttpServer::Handler handler = answer;
    while (!stop.stop_requested()) server->Turn(handler, absl::Milliseconds(10));
  });

  AgentClient client({"127.0.0.1", absl::StrCat(server->port())}, "", elsewhere.path(), 0);
  for (const std::string& told : answers) {
    const absl::Status fetched = client.Fetch();
    EXPECT_TRUE(fetched.ok()) << told << ": " << fetched;
    ASSERT_EQ(client.told().size(), 1u) << told;
    if (&told != &answers.front()) continue;
    EXPECT_TRUE(client.told().begin()->second.state.exists);
    EXPECT_EQ(client.told().begin()->second.state.resident_bytes, 7);
    EXPECT_EQ(client.told().begin()->second.readings.size(), 1u);
  }
  const JobWatch::Told& last = client.told().begin()->second;
  EXPECT_TRUE(last.state.known);
  EXPECT_FALSE(last.state.exists);
  EXPECT_EQ(last.state.state, '?');
  EXPECT_EQ(last.state.cpu_seconds, 0);
  EXPECT_EQ(last.state.resident_bytes, 0);
  EXPECT_TRUE(last.readings.empty());
}

}  // namespace
}  // namespace weft::observe
