#include "tools/topo/fabric_source.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/topo/option_checks.h"
#include "topology/fabric/faults.h"
#include "topology/fabric/generator.h"
#include "topology/fabric/load.h"

namespace weft::topo {

using topology::Fabric;

FabricSource::FabricSource(CLI::App& command) {
  command.add_option("FABRIC", name_, "A file, - for standard input, or a generator (see below)")
      ->required();
  command.add_option("--format", format_, "Format of the file; auto looks at its content")
      ->check(CLI::IsMember(topology::FabricFormatNames()));
  command.add_option(
      "--down", down_,
      "A cable or node that has failed, as leaf0>spine1, leaf[0-3]>spine1 or spine3; "
      "may be repeated");
  auto* defaults = command.add_option_group("defaults", "What a format other than TOML leaves out");
  defaults->add_option("--bandwidth", bandwidth_, "Bandwidth of cables")->check(CheckBandwidth);
  defaults->add_option("--delay", delay_, "Delay of cables, one way")->check(CheckDelay);
  defaults->add_option("--buffer", buffer_, "Bytes of the queue of a port; 0: not stated")
      ->check(CheckBytes);
  defaults->add_option("--latency", latency_, "Latency of switches")->check(CheckDelay);
  defaults
      ->add_option("--oversubscription", oversubscription_,
                   "slurm, hosts: a switch's bandwidth down over its bandwidth up")
      ->check(RealRange(0.001, 1000));
  defaults->add_option(
      "--hosts", hosts_,
      "lldp: which nodes are hosts, as \"gpu*,node*\"; default: those that neither "
      "bridge nor route");
  defaults->add_option("--ignore", ignore_, "lldp: nodes to leave out, as \"mgmt*\"");
}

absl::StatusOr<Fabric> FabricSource::Load() const {
  topology::LoadOptions options;
  WEFT_ASSIGN_OR_RETURN(options.format, topology::ParseFabricFormat(format_));
  topology::ImportDefaults& defaults = options.defaults;
  WEFT_ASSIGN_OR_RETURN(defaults.bandwidth, ParseBandwidth(bandwidth_));
  WEFT_ASSIGN_OR_RETURN(defaults.buffer, ParseBytes(buffer_));
  defaults.delay = DurationOf(delay_);
  defaults.latency = DurationOf(latency_);
  defaults.oversubscription = oversubscription_;
  defaults.hosts = hosts_;
  defaults.ignore = ignore_;
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, topology::LoadFabric(name_, options));
  for (const std::string& name : down_) {
    absl::StatusOr<std::vector<LinkId>> cables = topology::CablesNamed(name, fabric);
    if (!cables.ok()) return Annotate(cables.status(), absl::StrCat("--down ", name));
    for (LinkId cable : *cables) fabric.SetUp(cable, false);
  }
  return fabric;
}

std::string FabricHelp() {
  return absl::StrCat("FABRIC may be a file: ", absl::StrJoin(topology::FabricFormatNames(), ", "),
                      " (docs/fabric-format.md),\nor a generator, as "
                      "leaf-spine:leaves=4,hosts_per_leaf=16,spines=8. Generators and defaults:\n",
                      topology::GeneratorHelp());
}

absl::Status WriteJsonFile(const std::string& path, const nlohmann::ordered_json& value) {
  return WriteOutput(path, JsonText(value, 2) + "\n");
}

}  // namespace weft::topo
