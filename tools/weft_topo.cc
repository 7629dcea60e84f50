// weft-topo: what is where. `weft-topo host` shows a host; show, check, distance and convert work
// on a fabric; discover and learn-hash find one between the hosts of a job. Each subcommand is a
// file of tools/topo/.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "tools/command_line.h"
#include "tools/topo/fabric_commands.h"
#include "tools/topo/host_command.h"
#include "tools/topo/probe_commands.h"

namespace weft::topo {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("weft-topo: hosts and fabrics, their devices, distances and pictures");
  HostCommand host(app);
  ShowCommand show(app);
  CheckCommand check(app);
  DistanceCommand distance(app);
  ConvertCommand convert(app);
  DiscoverCommand discover(app);
  LearnHashCommand learn(app);
  app.require_subcommand(1);
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  absl::StatusOr<int> status = host.chosen()       ? host.Run()
                               : show.chosen()     ? show.Run()
                               : check.chosen()    ? check.Run()
                               : distance.chosen() ? distance.Run()
                               : discover.chosen() ? discover.Run()
                               : learn.chosen()    ? learn.Run()
                                                   : convert.Run();
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-topo: %s\n", status.status().message());
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace weft::topo

int main(int argc, char** argv) { return weft::topo::Main(argc, argv); }
