// An agent and its client, over a socket: what is known of a host reaches those who look from
// another.
#include "tools/observe/agent.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/records.h"
#include "tests/scratch_folder.h"
#include "tools/observe/agent_client.h"

namespace weft::observe {
namespace {

TEST(Agent, TellsTheReadingsOfItsHostsRanks) {
  ScratchFolder here, elsewhere;
  RecordOptions options;
  options.folder = here.path();
  options.job = "job";
  options.rank = 0;
  options.world_size = 1;
  auto records = Records::Open(options);
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

}  // namespace
}  // namespace weft::observe
