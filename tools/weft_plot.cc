// weft-plot: the loss of a run, from its metrics.jsonl, as a picture.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "tools/command_line.h"
#include "trainer/plot/loss_plot.h"
#include "trainer/plot/metrics.h"

namespace weft::train {
namespace {

int Main(int argc, char** argv) {
  CLI::App app{
      "Draws the training and validation loss of a run as SVG.\n"
      "Example: weft-plot runs/demo/metrics.jsonl -o loss.svg --unigram 6.43"};
  std::string metrics;
  std::string output = "loss.svg";
  std::string title;
  std::optional<double> unigram;
  bool log_scale = false;
  app.add_option("metrics", metrics, "the run's metrics.jsonl")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("-o,--output", output, "the picture")->capture_default_str();
  app.add_option("--title", title, "default: the name of the run's folder");
  app.add_option("--unigram", unigram,
                 "loss of a unigram model, nats a token (weft-data prepare prints it)")
      ->check(RealRange(0, 1000));
  app.add_flag("--log", log_scale, "logarithmic scale of the loss");
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;

  absl::StatusOr<LossPlot> plot = ReadLossMetrics(metrics);
  absl::Status status = plot.status();
  if (status.ok() && plot->train.empty() && plot->validation.empty()) {
    status = absl::InvalidArgumentError(absl::StrCat(metrics, " holds no step of a run"));
  }
  if (status.ok()) {
    plot->title = title.empty()
                      ? std::filesystem::absolute(metrics).parent_path().filename().string()
                      : title;
    plot->unigram = unigram;
    plot->log_scale = log_scale;
    status = WriteLossSvg(output, *plot);
  }
  if (!status.ok()) {
    absl::FPrintF(stderr, "weft-plot: %s\n", status.message());
    return 1;
  }
  absl::PrintF("%s: %d steps, %d validations\n", output, plot->train.size(),
               plot->validation.size());
  return 0;
}

}  // namespace
}  // namespace weft::train

int main(int argc, char** argv) { return weft::train::Main(argc, argv); }
