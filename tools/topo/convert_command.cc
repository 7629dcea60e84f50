#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/fabric_commands.h"
#include "topology/fabric/draw.h"
#include "topology/fabric/file.h"

namespace weft::topo {

using topology::Fabric;

ConvertCommand::ConvertCommand(CLI::App& app)
    : command_(app.add_subcommand("convert", "Any fabric to a fabric file, DOT or SVG")),
      source_(*command_) {
  command_->add_option("OUT", out_, "By its end: .dot, .svg, else a fabric file; - prints one")
      ->required();
  command_->footer(absl::StrCat(
      FabricHelp(), "\nExit status: 0; 1 for what cannot be read or written; 2 for wrong usage."));
}

absl::StatusOr<int> ConvertCommand::Run() const {
  WEFT_RETURN_IF_ERROR(CheckOutput(out_));
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, source_.Load());
  std::string text = absl::EndsWith(out_, ".dot")   ? topology::ToDot(fabric)
                     : absl::EndsWith(out_, ".svg") ? topology::DrawSvg(fabric)
                                                    : topology::WriteFabric(fabric);
  WEFT_RETURN_IF_ERROR(WriteOutput(out_, text));
  if (out_ != "-") {
    absl::PrintF("%s: %d hosts, %d switches, %d cables, %d bytes\n", out_, fabric.hosts().size(),
                 fabric.switches().size(), fabric.links() / 2, text.size());
  }
  return EXIT_SUCCESS;
}

}  // namespace weft::topo
