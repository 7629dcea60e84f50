// weft-generate: texts that a trained model writes, and how fast.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/failure.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/units.h"
#include "tools/command_line.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/trained_model.h"
#include "trainer/groups/status_error.h"
#include "trainer/kernel_choice/read_bandwidth.h"
#include "trainer/kernels/decode.h"
#include "trainer/memory/memory.h"

namespace weft::train {
namespace {

using nlohmann::json;

struct Command {
  std::string path;
  std::vector<std::string> prompts;
  std::string prompts_file;
  int unprompted = 0;
  std::string precision;
  TrainedModelOptions load;
  GenerateOptions options;
  int threads = 0;
  bool as_json = false;

  // InvalidArgument: the command line or a prompt is wrong.
  absl::Status Run() {
    WEFT_RETURN_IF_ERROR(CheckGenerateOptions(options));
    WEFT_RETURN_IF_ERROR(ReadPrompts());
    if (!precision.empty()) {
      load.precision = precision == "fp32"   ? Precision::kFp32
                       : precision == "bf16" ? Precision::kBf16
                                             : Precision::kFp16;
    }
    load.threads = threads;
    CountTensorMemory();  // on huge pages, which are read faster
    options.memory = MachineMemory();
    WEFT_ASSIGN_OR_RETURN(const TrainedModel trained, LoadTrainedModel(path, load));
    for (const std::string& reason : trained.passed_over) {
      absl::FPrintF(stderr, "weft-generate: passed over %s\n", reason);
    }
    WEFT_ASSIGN_OR_RETURN(
        const Generated written,
        Generate(*trained.model, *trained.tokenizer, prompts, options,
                 [this](size_t text, absl::string_view part) { Put(text, part); }));
    Finish(trained, written);
    return absl::OkStatus();
  }

 private:
  absl::Status ReadPrompts() {
    if (unprompted > 0) {
      prompts.assign(static_cast<size_t>(unprompted), "");
      return absl::OkStatus();
    }
    if (!prompts_file.empty()) {
      std::ifstream file(prompts_file);
      for (std::string line; std::getline(file, line);) {
        if (absl::EndsWith(line, "\r")) line.pop_back();
        prompts.push_back(line);
      }
      if (!file.eof()) {
        return absl::NotFoundError(absl::StrCat(prompts_file, " cannot be read"));
      }
    } else if (prompts.empty()) {
      if (isatty(STDIN_FILENO) != 0) {
        return absl::InvalidArgumentError(
            "there is no prompt: give --prompt TEXT, --prompts FILE, a text on standard input, or "
            "--unprompted N");
      }
      std::string text(std::istreambuf_iterator<char>(std::cin), {});
      while (absl::EndsWith(text, "\n") || absl::EndsWith(text, "\r")) text.pop_back();
      prompts.push_back(std::move(text));
    }
    if (prompts.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(prompts_file, " has no prompt: one a line"));
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (!prompts[i].empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt ", i + 1,
          prompts_file.empty() ? "" : absl::StrCat(" (line ", i + 1, " of ", prompts_file, ")"),
          " is empty; --unprompted N begins N new documents"));
    }
    return absl::OkStatus();
  }

  // Text as it comes, where one text comes after the other; else when all are there.
  bool Streams() const { return options.batch == 1 || prompts.size() == 1; }

  void Put(size_t text, absl::string_view part) {
    if (as_json) {
      PutJson({{"text", text}, {"part", std::string(part)}});
    } else if (Streams()) {
      PutHeading(text);
      std::fwrite(part.data(), 1, part.size(), stdout);
    }
    std::fflush(stdout);
  }
  // The prompt of a text of which nothing has been put yet, behind the text before it.
  void PutHeading(size_t text) {
    for (; headings_ <= text; ++headings_) {
      if (headings_ > 0) std::fputs("\n\n", stdout);
      std::fwrite(prompts[headings_].data(), 1, prompts[headings_].size(), stdout);
    }
  }
  static void PutJson(const json& object) {
    // A part of a model's text is UTF-8, but nothing may hang on it.
    const std::string line = JsonText(object);
    absl::FPrintF(stdout, "%s\n", line);
  }

  void Finish(const TrainedModel& trained, const Generated& written) {
    for (size_t i = 0; i < written.texts.size(); ++i) {
      const GeneratedText& text = written.texts[i];
      if (as_json) {
        PutJson({{"text", i},
                 {"prompt", prompts[i]},
                 {"whole", text.text},
                 {"prompt_tokens", text.prompt_tokens},
                 {"tokens", text.tokens.size()},
                 {"end", text.ended_document ? "document" : "tokens"}});
      } else if (Streams()) {
        PutHeading(i);
      } else {
        absl::FPrintF(stdout, "%s%s", i > 0 ? "\n\n" : "", text.text);
      }
    }
    if (!as_json) std::fputs("\n", stdout);
    std::fflush(stdout);
    PutSpeed(trained, written.speed);
  }

  void PutSpeed(const TrainedModel& trained, const GenerateSpeed& speed) const {
    const double prefill = Rate(speed.prefill_tokens, speed.prefill_seconds);
    const double decode = Rate(speed.decode_tokens, speed.decode_seconds);
    const double used = Rate(speed.decode_bytes, speed.decode_seconds);
    const int64_t step_bytes =
        speed.decode_steps == 0 ? 0 : speed.decode_bytes / speed.decode_steps;
    const double measured =
        step_bytes == 0 ? 0 : ReadBandwidth(Bytes(step_bytes)).bytes_per_second();
    const double share = measured > 0 ? used / measured : 0;
    if (as_json) {
      PutJson({{"checkpoint", trained.checkpoint},
               {"step", trained.step},
               {"precision", std::string(NameOf(trained.precision))},
               {"instruction_set", kernels::Decoding().instruction_set},
               {"threads", trained.threads},
               {"batch", std::min<int64_t>(options.batch, static_cast<int64_t>(prompts.size()))},
               {"prefill_tokens", speed.prefill_tokens},
               {"prefill_tokens_per_second", prefill},
               {"decode_tokens", speed.decode_tokens},
               {"decode_tokens_per_second", decode},
               {"step_bytes", step_bytes},
               {"read_bytes_per_second", used},
               {"measured_read_bytes_per_second", measured},
               {"read_share", share}});
      return;
    }
    absl::FPrintF(stderr,
                  "\nmodel      %s, step %d, %s, %s, %d threads\n"
                  "prefill    %d tokens, %.0f tokens/s\n",
                  trained.checkpoint, trained.step, NameOf(trained.precision),
                  kernels::Decoding().instruction_set, trained.threads, speed.prefill_tokens,
                  prefill);
    if (speed.decode_steps == 0) return;
    absl::FPrintF(
        stderr,
        "decode     %d tokens, %.1f tokens/s, %.1f a step\n"
        "reading    %.1f MB a step, %.2f GB/s: %.2f of the %.2f GB/s at which this machine "
        "reads so many\n",
        speed.decode_tokens, decode,
        Rate(speed.decode_tokens, static_cast<double>(speed.decode_steps)),
        static_cast<double>(step_bytes) / 1e6, used / 1e9, share, measured / 1e9);
  }
  static double Rate(int64_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0;
  }

  size_t headings_ = 0;  // texts whose prompt has been put
};

int Main(int argc, char** argv) {
  CLI::App app(
      "Texts that a trained model writes.\n"
      "  weft-generate runs/demo --prompt 'The sea' --tokens 50\n"
      "  weft-generate runs/demo/checkpoints/step-00000400 --prompts prompts.txt --batch 8 --json\n"
      "The texts go to standard output, speed and bandwidth to standard error; with --json all "
      "goes\n"
      "to standard output, one object a line. Exit status 0: done; 1: failed; 2: the command line "
      "or\n"
      "a prompt is wrong.",
      "weft-generate");
  Command command;
  app.add_option("path", command.path,
                 "folder of a run, or of one of its checkpoints, of any layout of ranks")
      ->required();
  auto* prompt = app.add_option("--prompt", command.prompts, "beginning of a text; may be repeated")
                     ->allow_extra_args(false);
  auto* prompts = app.add_option("--prompts", command.prompts_file, "file of prompts, one a line")
                      ->excludes(prompt);
  app.add_option("--unprompted", command.unprompted, "new documents to write, without a prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->excludes(prompt)
      ->excludes(prompts);
  GenerateOptions& options = command.options;
  app.add_option("--tokens", options.tokens, "the most tokens of each text")->capture_default_str();
  app.add_option("--temperature", options.temperature,
                 "0: the likeliest token always; higher draws more freely")
      ->capture_default_str();
  app.add_option("--top-k", options.top_k,
                 "draw among this many of the likeliest tokens; 0: among all")
      ->capture_default_str();
  app.add_option("--top-p", options.top_p,
                 "draw among the likeliest tokens that have this probability together")
      ->capture_default_str();
  app.add_option("--seed", options.seed,
                 "seed of the first text; each further text has a seed higher by 1")
      ->capture_default_str();
  app.add_option("--batch", options.batch, "texts written at a time")->capture_default_str();
  app.add_option("--precision", command.precision,
                 "number type that the model computes in (default: that of its training)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--tokenizer", command.load.tokenizer,
                 "the tokenizer's file (default: that of the run)");
  app.add_option("--threads", command.threads,
                 "compute threads (default: OMP_NUM_THREADS, else one for each core)")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--json", command.as_json,
               "parts of texts as they come, then the texts, then the speed: one object a line");
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  // Weights on huge pages, where the kernel gives them: LibTorch looks once, before its first
  // tensor.
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
  const absl::Status status = Guarded([&command] { return command.Run(); });
  if (status.ok()) return 0;
  std::fflush(stdout);
  absl::FPrintF(stderr, "weft-generate: %s\n", DescribeFailure(status));
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

}  // namespace
}  // namespace weft::train

int main(int argc, char** argv) { return weft::train::Main(argc, argv); }
