#include "base/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/scratch_folder.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<CommandOutput> Shell(const std::string& script,
                                    absl::Duration limit = absl::Seconds(60)) {
  return RunCommand({"sh", "-c", script}, limit);
}

TEST(RunCommand, TellsAllThatWasSaidAndTheExitStatus) {
  auto output =
      RunCommand({"sh", "-c", "echo $0 $1; echo error >&2; exit 3", "a b", "c"}, absl::Seconds(60));
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->status, 3);
  EXPECT_EQ(output->text, "a b c\nerror\n");
  EXPECT_EQ(Shell("cat")->text, "");  // standard input is empty
}

TEST(RunCommand, NamesAProgramThatIsNotThere) {
  auto output = RunCommand({"no-such-program"}, absl::Seconds(60));
  EXPECT_TRUE(absl::IsNotFound(output.status())) << output.status();
  EXPECT_THAT(std::string(output.status().message()), HasSubstr("no-such-program"));
}

TEST(RunCommand, NamesTheSignalThatEndedIt) {
  EXPECT_THAT(std::string(Shell("kill -SEGV $$").status().message()), HasSubstr("Segmentation"));
}

// With all that it started; also when it has closed its output.
TEST(RunCommand, IsThroughInTime) {
  const SystemClock clock;
  for (const char* script : {"sleep 1000", "exec >&- 2>&-; sleep 1000"}) {
    const absl::Time start = clock.Now();
    auto output = Shell(script, absl::Milliseconds(200));
    EXPECT_TRUE(absl::IsDeadlineExceeded(output.status())) << script << ": " << output.status();
    EXPECT_LT(clock.Now() - start, absl::Seconds(60)) << script;
  }
}

TEST(RunCommand, NamesTooMuchOutputAsSuch) {
  const auto output = Shell("head -c 1048576 /dev/zero");
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ(output->text.size(), size_t{1} << 20);
  const absl::Status status = Shell("yes", absl::Seconds(600)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("more than 1 MiB"));
}

TEST(RunCommand, EndsTheChildrenToo) {
  const ScratchFolder folder;
  const std::string file = folder / "child";
  // A limit within which the shell is to get as far as its `wait`.
  EXPECT_FALSE(Shell("sleep 1000 & echo $! > " + file + "; wait", absl::Seconds(3)).ok());
  auto said = Shell("cat " + file);
  ASSERT_TRUE(said.ok());
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(said->text, &child)) << said->text;
  // Killed; the process that inherits it may take a moment to reap it.
  EXPECT_TRUE(Shell("for i in $(seq 1000); do grep -q '^State:.[^Z]' /proc/" +
                    std::to_string(child) + "/status 2>&1 || exit 0; sleep 0.01; done; exit 1")
                  ->status == 0);
}

TEST(CancellableCommand, EndsTheOneThatRunsAndStartsNoOther) {
  const ScratchFolder folder;
  const std::string begun = folder / "begun";
  const auto pid_of = [&begun] {
    int pid = 0;
    const auto said = Shell("cat " + begun + " || true");
    return said.ok() && absl::SimpleAtoi(said->text, &pid) ? pid : 0;
  };
  CancellableCommand command;
  int child = 0;
  std::thread other([&] {
    while ((child = pid_of()) == 0) absl::SleepFor(absl::Milliseconds(1));
    command.Cancel();
  });
  const auto output = command.Run(
      {"sh", "-c", "echo $$ > $0.new; mv $0.new $0; exec sleep 1000", begun}, absl::Seconds(600));
  other.join();
  EXPECT_TRUE(absl::IsCancelled(output.status())) << output.status();
  EXPECT_EQ(kill(child, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_TRUE(absl::IsCancelled(command.Run({"true"}, absl::Seconds(60)).status()));
}

}  // namespace
}  // namespace weft
