// The measured costs of a machine as a file.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/machine_cache.h"
#include "base/random.h"
#include "base/status.h"
#include "base/write_file.h"
#include "collectives/planner/cost.h"

namespace weft::collectives::planner {

std::vector<std::pair<std::string, double*>> Fields(Calibration& calibration) {
  std::vector<std::pair<std::string, double*>> fields;
  for (size_t t = 0; t < kTransportNames.size(); ++t) {
    LinkCosts& link = calibration.links[t];
    for (const auto& [name, value] :
         {std::pair("latency", &link.latency), std::pair("message", &link.message),
          std::pair("byte", &link.byte), std::pair("host_byte", &link.host_byte)}) {
      fields.emplace_back(absl::StrCat(kTransportNames[t], ".", name), value);
    }
  }
  fields.emplace_back("segment_byte", &calibration.segment_byte);
  fields.emplace_back("reduce_byte", &calibration.reduce_byte);
  fields.emplace_back("copy_byte", &calibration.copy_byte);
  fields.emplace_back("switch_rank", &calibration.switch_rank);
  fields.emplace_back("cache_kib", &calibration.cache_kib);
  return fields;
}

const Calibration& DefaultCalibration() {
  static const Calibration* const defaults = [] {
    auto* made = new Calibration;
    made->links[0] = {.latency = 340, .message = 280, .byte = 0.11, .host_byte = 0.10};
    const LinkCosts tcp{.latency = 8600, .message = 2700, .byte = 0.18, .host_byte = 0.38};
    const LinkCosts nic{.latency = 3000, .message = 600, .byte = 0.02, .host_byte = 0.082};
    made->links[1] = made->links[4] = tcp;
    made->links[2] = made->links[3] = nic;
    // Not measured on that machine: its reads, times what a reduce-scatter of 256 KiB on two ranks
    // of a Xeon with AMX, where both ends copy, takes over an all-gather, where one end reads.
    made->segment_byte = 0.15;
    made->reduce_byte = 0.0095, made->copy_byte = 0.018, made->switch_rank = 1370;
    made->cache_kib = 1024;
    made->source = "defaults";
    return made;
  }();
  return *defaults;
}

std::string ToText(const Calibration& calibration) {
  std::string text =
      "# Costs of communication on this machine, in nanoseconds, and KiB of a core's cache; written"
      " by weft-bw --calibrate.\n";
  Calibration copy = calibration;
  for (const auto& [name, value] : Fields(copy)) {
    absl::StrAppendFormat(&text, "%s %.6g\n", name, *value);
  }
  return text;
}

absl::StatusOr<Calibration> ParseCalibration(absl::string_view text, absl::string_view file) {
  Calibration calibration;
  calibration.source = std::string(file);
  std::map<std::string, double*> left;
  for (auto& [name, value] : Fields(calibration)) left.emplace(name, value);
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    const auto field = words.empty() ? left.end() : left.find(words[0]);
    double value = 0;
    if (words.size() != 2 || field == left.end() || !absl::SimpleAtod(words[1], &value) ||
        !(value > 0 && value < 1e12)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ", line ", number, ": \"", line,
                       "\" is not a cost that is still missing and a positive number"));
    }
    *field->second = value;
    left.erase(field);
  }
  if (!left.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file, " lacks ", left.begin()->first));
  }
  return calibration;
}

std::string CalibrationFile() { return MachineCacheFile("costs"); }

absl::StatusOr<Calibration> LoadCalibration(const Settings& settings) {
  const std::string& wanted = settings.Text("collective.costs");
  const std::string file = wanted.empty() ? CalibrationFile() : wanted;
  std::ifstream stream(file);
  if (file.empty() || !stream) {
    if (wanted.empty()) return DefaultCalibration();
    return absl::NotFoundError(absl::StrCat("collective.costs: cannot read ", file));
  }
  std::stringstream text;
  text << stream.rdbuf();
  auto calibration = ParseCalibration(text.str(), file);
  if (calibration.ok()) return calibration;
  constexpr char kRemedy[] = "; weft-bw --calibrate writes it anew";
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(calibration.status().message(), kRemedy));
  }
  WEFT_LOG_WARN(calibration.status().message(), "; the defaults are used", kRemedy);
  return DefaultCalibration();
}

std::vector<std::pair<std::string, double>> Numbers(const Calibration& calibration) {
  Calibration copy = calibration;
  std::vector<std::pair<std::string, double>> numbers;
  for (const auto& [name, value] : Fields(copy)) numbers.emplace_back(name, *value);
  return numbers;
}

absl::Status CheckWritable(const std::string& file) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  return CheckOutput(file);
}

absl::Status SaveCalibration(const Calibration& calibration, const std::string& file) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  return WriteFile(file, ToText(calibration));
}

}  // namespace weft::collectives::planner
