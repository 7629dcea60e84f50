#include "tools/topo/host_command.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "topology/host/binding.h"
#include "topology/host/discover.h"
#include "topology/host/distance.h"
#include "topology/host/findings.h"
#include "topology/host/nccl_machine.h"
#include "topology/host/nccl_xml.h"
#include "topology/host/render.h"

namespace weft::topo {
namespace {

using topology::Machine;

constexpr const char* kFooter = R"(Examples:
  weft-topo host                                   this machine
  weft-topo host --xml node7.xml --svg node7.svg   another, from `lstopo node7.xml`
  weft-topo host --nccl dump.xml                   what NCCL saw (NCCL_TOPO_DUMP_FILE)
  weft-topo host --nccl-out topo.xml               a file for NCCL_TOPO_FILE

Distances are NCCL's: NVL, PIX, PXB, PHB, SYS; bandwidths are what NCCL reckons with.
Exit status: 0; 1 for what could not be read or written, and with --strict when something is odd; 2 for
wrong usage.)";

void PrintSection(const char* title, const std::string& text) {
  if (!text.empty()) absl::PrintF("%s\n%s\n", title, text);
}

}  // namespace

HostCommand::HostCommand(CLI::App& app)
    : command_(app.add_subcommand("host", "This host or another: devices, distances, bindings")) {
  command_->footer(kFooter);
  command_->option_defaults()->always_capture_default();
  auto* source = command_->add_option_group("machine", "Which machine; none of these: this one");
  source->add_option("--xml", hwloc_file_, "hwloc's XML of a machine: lstopo FILE.xml");
  source->add_option("--nccl", nccl_file_,
                     "NCCL's topology file: NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE");
  source->add_option("--synthetic", synthetic_,
                     "hwloc's description of CPUs, as \"pack:2 numa:1 core:8 pu:2\"");
  source->require_option(0, 1);
  command_
      ->add_option("--processes", processes_,
                   "Local processes to bind; 0: one for each GPU, or for each NUMA node")
      ->check(CLI::Range(0, 4096));
  command_->add_option("--json", json_file_, "Write everything to this file; -: print it alone");
  command_->add_option("--svg", svg_file_, "Draw the machine into this file");
  command_->add_option("--nccl-out", nccl_out_file_, "Write NCCL's topology file");
  command_->add_flag("--strict", strict_, "Exit with 1 when something odd was found");
}

absl::StatusOr<int> HostCommand::Run() const {
  for (const std::string& file : {json_file_, svg_file_, nccl_out_file_}) {
    WEFT_RETURN_IF_ERROR(CheckOutput(file));
  }
  absl::StatusOr<Machine> loaded = !hwloc_file_.empty()  ? topology::ReadHwlocFile(hwloc_file_)
                                   : !nccl_file_.empty() ? topology::ReadNcclFile(nccl_file_)
                                   : !synthetic_.empty()
                                       ? topology::MachineFromSynthetic(synthetic_)
                                       : topology::DiscoverMachine();
  WEFT_RETURN_IF_ERROR(loaded.status());
  const Machine& machine = *loaded;
  const topology::Distances distances(machine);
  const std::vector<topology::GpuNics> nics = topology::NicsOfGpus(machine, distances);
  int processes = processes_;
  if (processes == 0) processes = static_cast<int>(machine.gpus().size());
  if (processes == 0 && machine.host().has_value()) processes = machine.host()->numa_nodes();
  std::vector<topology::ProcessBinding> bindings;
  if (machine.host().has_value()) {
    WEFT_ASSIGN_OR_RETURN(bindings, topology::PlanBindings(machine, distances, processes));
  }
  const std::vector<topology::Finding> findings = topology::FindingsOf(machine, distances, nics);
  const topology::MachineReport report{machine, distances, nics, bindings, findings};

  const std::string json = JsonText(topology::ReportJson(report), 2) + "\n";
  if (json_file_ == "-") {
    std::fputs(json.c_str(), stdout);
  } else {
    std::fputs((topology::TreeText(machine) + "\n").c_str(), stdout);
    PrintSection("Distances", topology::MatrixText(machine, distances));
    PrintSection("NICs of GPUs", topology::NicsText(machine, nics));
    PrintSection("Bindings", topology::BindingsText(machine, bindings));
    std::fputs(topology::FindingsText(findings).c_str(), stdout);
    if (!json_file_.empty()) WEFT_RETURN_IF_ERROR(WriteFile(json_file_, json));
  }
  if (!svg_file_.empty()) {
    WEFT_RETURN_IF_ERROR(WriteFile(svg_file_, topology::MachineSvg(report)));
  }
  if (!nccl_out_file_.empty()) {
    WEFT_ASSIGN_OR_RETURN(std::string text,
                          topology::NcclXmlText(topology::NcclFromMachine(machine)));
    WEFT_RETURN_IF_ERROR(WriteFile(nccl_out_file_, text));
  }
  return strict_ && !findings.empty() ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace weft::topo
