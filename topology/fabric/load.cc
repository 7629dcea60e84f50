#include "topology/fabric/load.h"

#include <array>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/fabric/file.h"
#include "topology/fabric/generator.h"

namespace weft::topology {
namespace {

constexpr std::array<absl::string_view, 7> kNames = {"auto",  "toml", "htsim",        "slurm",
                                                     "hosts", "lldp", "ibnetdiscover"};

}  // namespace

absl::StatusOr<FabricFormat> ParseFabricFormat(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<FabricFormat>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no fabric format \"", name,
                                                 "\"; there are ", absl::StrJoin(kNames, ", ")));
}

absl::string_view NameOf(FabricFormat format) { return kNames[static_cast<size_t>(format)]; }

std::vector<std::string> FabricFormatNames() { return {kNames.begin(), kNames.end()}; }

FabricFormat DetectFormat(absl::string_view text) {
  TextLines lines(text.substr(0, size_t{1} << 20), "");
  absl::string_view line;
  while (lines.Next(line, /*comments=*/false)) {
    if (line.empty()) continue;
    if (line[0] == '#') {
      if (absl::StartsWith(line, "# Topology file: generated on")) {
        return FabricFormat::kIbnetdiscover;
      }
      continue;
    }
    if (line[0] == '{') return FabricFormat::kLldp;
    std::string lower = absl::AsciiStrToLower(line.substr(0, 256));
    if (absl::StartsWith(lower, "switchname=")) return FabricFormat::kSlurm;
    std::vector<absl::string_view> words = Words(lower);
    for (absl::string_view key : {"nodes", "tiers", "podsize"}) {
      // A negative number, too: the importer then says what is wrong, where a host list would take
      // the key and the number for a host and its switch.
      absl::string_view value = words.size() == 2 ? words[1] : "";
      if (!absl::ConsumePrefix(&value, "-")) absl::ConsumePrefix(&value, "+");
      if (words[0] == key && !value.empty() && absl::ascii_isdigit(value[0])) {
        return FabricFormat::kHtsim;
      }
    }
    for (absl::string_view key : {"vendid=", "devid=", "sysimgguid=", "switchguid=", "caguid="}) {
      if (absl::StartsWith(lower, key)) return FabricFormat::kIbnetdiscover;
    }
    if (absl::StrContains(line, "->")) return FabricFormat::kHosts;
    if (line[0] == '[' || absl::StrContains(line, " = ") || absl::StrContains(line, "={")) {
      return FabricFormat::kToml;
    }
    if (words.size() == 2 || absl::StrContains(line, ',')) return FabricFormat::kHosts;
    return FabricFormat::kAuto;
  }
  return FabricFormat::kAuto;
}

absl::StatusOr<Fabric> ParseFabric(absl::string_view text, const std::string& name,
                                   const LoadOptions& options) {
  FabricFormat format = options.format;
  if (format == FabricFormat::kAuto) format = DetectFormat(text);
  switch (format) {
    case FabricFormat::kAuto:
      break;
    case FabricFormat::kToml:
      return ReadFabric(text, name);
    case FabricFormat::kHtsim:
      return ImportHtsim(text, name, options.defaults);
    case FabricFormat::kSlurm:
      return ImportSlurm(text, name, options.defaults);
    case FabricFormat::kHosts:
      return ImportHostList(text, name, options.defaults);
    case FabricFormat::kLldp:
      return ImportLldp(text, name, options.defaults);
    case FabricFormat::kIbnetdiscover:
      return ImportIbnetdiscover(text, name, options.defaults);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": is in none of the formats of fabrics: ",
      absl::StrJoin(kNames.begin() + 1, kNames.end(), ", "), "; --format says which is meant"));
}

absl::StatusOr<Fabric> LoadFabric(const std::string& name, const LoadOptions& options) {
  std::error_code error;
  bool is_file = name == "-" || std::filesystem::exists(name, error);
  if (!is_file && IsGenerator(name)) return GenerateFabric(name);
  if (!is_file) {
    std::string nearest = NearestName(name.substr(0, 64), GeneratorNames());
    return absl::NotFoundError(absl::StrCat(
        name, ": there is no such file, and no such generator; ",
        nearest.empty() ? absl::StrCat("generators: ", absl::StrJoin(GeneratorNames(), ", "))
                        : absl::StrCat("nearest generator: ", nearest)));
  }
  if (name != "-" && std::filesystem::is_directory(name, error)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is a folder"));
  }
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadInput(name));
  return ParseFabric(text, name == "-" ? "standard input" : name, options);
}

}  // namespace weft::topology
