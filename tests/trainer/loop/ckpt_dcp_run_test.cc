// weft-ckpt convert to and from the folders of torch.distributed.checkpoint, with the optimizer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/read_file.h"
#include "tests/trainer/loop/ckpt_run.h"

namespace weft::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// All of the state: a run goes on from what came back as from what went.
TEST_F(CkptRunTest, TorchDistributedCheckpointKeepsEveryBitOfTheState) {
  const std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch: set WEFT_TORCH_PYTHON";
  const Outcome cut = Run(2, "cut", Join(kShort, {"parallel.tensor=2"}));
  ASSERT_EQ(cut.status, 0) << cut.output;
  const std::string folder = RunDir("dcp");
  const Outcome to = Ckpt({"convert", Step("cut", 2), "--to", "dcp", folder, "--python", python});
  ASSERT_EQ(to.status, 0) << to.output;
  EXPECT_TRUE(fs::exists(folder + "/.metadata"));
  EXPECT_FALSE(fs::exists(folder + "/exchange.safetensors"));
  const Outcome from =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("dcp_back"), "--python", python});
  ASSERT_EQ(from.status, 0) << from.output;
  EXPECT_EQ(CkptJson({"diff", Step("cut", 2), Step("dcp_back", 2)})["equal"], true);
  const Outcome resumed = Run(2, "dcp_back", Join(kShort, {"parallel.tensor=2", "--resume"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_EQ(CkptJson({"diff", Step("cut", 4), Step("dcp_back", 4)})["equal"], true);

  const Outcome nothing =
      Ckpt({"convert", RunDir("one"), "--from", "dcp", RunDir("dcp_never"), "--python", python});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_THAT(nothing.output, HasSubstr("FileNotFoundError"));
  EXPECT_FALSE(fs::exists(RunDir("dcp_never")));
}

// A checkpoint that FSDP2 wrote becomes a run that goes on, and goes back, with AdamW's states.
TEST_F(CkptRunTest, WhatFsdpSavesGoesOnAndComesBackToTheBit) {
  const std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch: set WEFT_TORCH_PYTHON";
  const std::vector<std::string> llama =
      Join(kShort, {"model.style=llama", "train.precision=fp32", "optimizer.name=adamw"});
  ASSERT_EQ(Run(1, "llama_model", Join(llama, {"train.steps=1"})).status, 0);
  const std::string script = Environment("WEFT_SOURCE") + "/tests/trainer/loop/fsdp_states.py";
  const auto fsdp = [&](const std::string& what, const std::string& folder,
                        const std::string& whole) {
    const std::string rendezvous = RunDir("fsdp_" + what);
    return Process({python, "-W", "ignore", script, what,
                    RunDir("llama_model") + "/model/model.safetensors", folder, whole, rendezvous},
                   rendezvous + ".out")
        .Wait();
  };
  const std::string folder = RunDir("fsdp_dcp"), whole = RunDir("fsdp_whole.safetensors");
  const Outcome saved = fsdp("save", folder, whole);
  if (saved.output.find("ImportError") != std::string::npos) {
    GTEST_SKIP() << "this PyTorch has no FSDP2";
  }
  ASSERT_EQ(saved.status, 0) << saved.output;

  const Outcome from =
      Ckpt(Join({"convert", folder, "--from", "dcp", RunDir("from_fsdp"), "--python", python},
                ConfigOf(llama)));
  ASSERT_EQ(from.status, 0) << from.output;
  EXPECT_THAT(from.output, HasSubstr("The optimizer's states are those of step 2"));
  const Outcome resumed =
      Run(2, "from_fsdp", Join(llama, {"train.steps=3", "parallel.tensor=2", "--resume"}));
  ASSERT_EQ(resumed.status, 0) << resumed.output;
  EXPECT_THAT(resumed.output,
              AllOf(HasSubstr("resumed after step 2"), Not(HasSubstr("begin at zero"))));

  const std::string back = RunDir("back_dcp"), back_whole = RunDir("back_whole.safetensors");
  const Outcome to = Ckpt({"convert", Step("from_fsdp", 2), "--to", "dcp", back, "--names",
                           "huggingface", "--python", python});
  ASSERT_EQ(to.status, 0) << to.output;
  const Outcome loaded = fsdp("load", back, back_whole);
  ASSERT_EQ(loaded.status, 0) << loaded.output;
  EXPECT_TRUE(*ReadFile(whole) == *ReadFile(back_whole));

  // Without a config nobody knows what run it is to be; with another model it is refused by name.
  const Outcome unnamed =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("unnamed"), "--python", python});
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_THAT(unnamed.output, HasSubstr("--config says what run it is to be"));
  const Outcome other =
      Ckpt(Join({"convert", folder, "--from", "dcp", RunDir("unnamed"), "--python", python},
                ConfigOf(Join(llama, {"model.layers=3"}))));
  EXPECT_EQ(other.status, 1);
  EXPECT_THAT(other.output, HasSubstr(".layers.2."));
}

// fp16 leaves out the steps in which its loss scale is too large; a run without steps makes none.
// The Python is one that keeps what it is called with.
TEST_F(CkptRunTest, AdamsStepsForPyTorchAreThoseThatUpdated) {
  const Outcome trained = Run(1, "left_out",
                              Join(kShort, {"train.precision=fp16", "train.loss_scale=1e6",
                                            "optimizer.name=adamw", "train.steps=12"}));
  ASSERT_EQ(trained.status, 0) << trained.output;
  const size_t updates = Metrics("left_out").size();
  ASSERT_GT(updates, 0U);
  ASSERT_LT(updates, 12U);
  const Outcome none = Run(1, "no_steps", Join(kShort, {"train.steps=0"}));
  ASSERT_EQ(none.status, 0) << none.output;
  const std::string python = RunDir("keeping_python"), called = RunDir("called");
  std::ofstream(python) << "#!/bin/sh\nfor word; do :; done\necho $word > " << called << "\n";
  fs::permissions(python, fs::perms::owner_all);
  for (const auto& [run, step, expected] :
       {std::tuple("left_out", 12, updates), std::tuple("no_steps", 0, size_t{0})}) {
    const Outcome to =
        Ckpt({"convert", Step(run, step), "--to", "dcp", absl::StrCat(RunDir(run), "_dcp"),
              "--names", "huggingface", "--python", python});
    ASSERT_EQ(to.status, 0) << to.output;
    EXPECT_EQ(*ReadFile(called), absl::StrCat(expected, "\n"));
  }
}

// Its .metadata is a pickle of os.system("touch ..."): the reader runs nothing of it. Nor does it
// give attributes of what the format knows, beyond what an enumeration of it has.
TEST_F(CkptRunTest, APickleThatAsksForMoreThanTheFormatIsRefusedByName) {
  const std::string python = TorchPython();
  if (python.empty()) GTEST_SKIP() << "no Python with PyTorch: set WEFT_TORCH_PYTHON";
  const std::string folder = RunDir("dcp_strange"), touched = RunDir("touched");
  fs::create_directories(folder);
  std::ofstream(folder + "/.metadata") << "cposix\nsystem\n(S'touch " << touched << "'\ntR.";
  const Outcome outcome =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("dcp_refused"), "--python", python});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output, HasSubstr("asks for posix.system, which is no part of the format"));
  EXPECT_FALSE(fs::exists(touched));
  EXPECT_FALSE(fs::exists(RunDir("dcp_refused")));
  std::ofstream(folder + "/.metadata")
      << "cbuiltins\ngetattr\n(ccollections\nOrderedDict\nS'fromkeys'\ntR.";
  const Outcome attribute =
      Ckpt({"convert", folder, "--from", "dcp", RunDir("dcp_refused"), "--python", python});
  EXPECT_EQ(attribute.status, 1);
  EXPECT_THAT(attribute.output, HasSubstr("asks for builtins.getattr of <class "
                                          "'collections.OrderedDict'>, which is no part"));
}

// The Python is one that never ends.
TEST_F(CkptRunTest, ASignalEndsThePythonAndLeavesNoFolder) {
  const std::string python = RunDir("waiting_python"), begun = RunDir("begun");
  std::ofstream(python) << "#!/bin/sh\necho $$ > " << begun << ".new\nmv " << begun << ".new "
                        << begun << "\nexec sleep 1000\n";
  fs::permissions(python, fs::perms::owner_all);
  for (const int signal : {SIGINT, SIGTERM}) {
    Process convert({Environment("WEFT_BIN") + "/weft-ckpt", "convert", Step("one", 4), "--to",
                     "dcp", RunDir("signalled"), "--python", python},
                    RunDir("signalled.out"));
    while (!fs::exists(begun) && convert.running()) absl::SleepFor(absl::Milliseconds(1));
    pid_t child = 0;
    ASSERT_TRUE(std::ifstream(begun) >> child);
    fs::remove(begun);
    EXPECT_THAT(Entries(".signalled.converting-"), SizeIs(1));
    convert.Signal(signal);
    const Outcome outcome = convert.Wait();
    EXPECT_EQ(outcome.status, 128 + signal);
    EXPECT_EQ(outcome.output, "");
    EXPECT_EQ(kill(child, 0), -1);
    EXPECT_EQ(errno, ESRCH);
    EXPECT_THAT(Entries(".signalled.converting-"), IsEmpty());
    EXPECT_FALSE(fs::exists(RunDir("signalled")));
  }
}

// Before the checkpoint is read, which would say that it is damaged.
TEST_F(CkptRunTest, APythonWithoutPyTorchIsNamed) {
  const std::string target = RunDir("dcp_without");
  const std::string damaged = CopyOfStep("dcp_damaged");
  Flip(damaged + "/" + ShardName(0, 1), 5000);
  for (const char* names : {"weft", "huggingface"}) {
    const Outcome none = Ckpt({"convert", damaged, "--to", "dcp", target, "--names", names,
                               "--python", "/nonexistent/python"});
    EXPECT_EQ(none.status, 1);
    EXPECT_THAT(none.output, HasSubstr("there is no /nonexistent/python; --python names another"));
  }
  // One that sees no package but its own.
  const std::string bare = RunDir("bare_python");
  std::ofstream(bare) << "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n";
  fs::permissions(bare, fs::perms::owner_all);
  const Outcome without = Ckpt({"convert", damaged, "--to", "dcp", target, "--python", bare});
  EXPECT_EQ(without.status, 1);
  EXPECT_THAT(without.output, HasSubstr("has no PyTorch"));
  EXPECT_FALSE(fs::exists(target));
  EXPECT_THAT(Entries(".dcp_without"), IsEmpty());
}

}  // namespace
}  // namespace weft::train
