#include "trainer/resume_identity.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/toml.h"
#include "trainer/config_toml.h"

namespace weft::train {

std::string ResumeIdentity(const TrainConfig& config) {
  std::string identity;
  std::string section;
  std::vector<std::string> lines = absl::StrSplit(config.text, '\n');
  for (const std::string& line : lines) {
    if (!line.empty() && line[0] == '[') section = line.substr(1, line.size() - 2);
    size_t equals = line.find(" = ");
    if (equals == std::string::npos) continue;
    std::string name = absl::StrCat(section, ".", line.substr(0, equals));
    if (section != "model" && name != "train.seed" && name != "train.global_batch" &&
        name != "data.prefix") {
      continue;
    }
    absl::StrAppend(&identity, name, line.substr(equals), "\n");
  }
  absl::StrAppend(&identity, "train.precision = ", NameOf(config.precision), "\n");
  return identity;
}

absl::StatusOr<TrainConfig> LoadIdentity(absl::string_view identity) {
  std::vector<std::string> pairs;
  for (absl::string_view line : absl::StrSplit(identity, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(" = ", 1));
    std::string value(parts.second);
    if (absl::StartsWith(value, "\"")) {
      WEFT_ASSIGN_OR_RETURN(const toml::value root,
                            ParseToml(absl::StrCat("text = ", value), std::string(parts.first)));
      WEFT_ASSIGN_OR_RETURN(value, SettingText(root.at("text")));
    }
    pairs.push_back(absl::StrCat(parts.first, "=", value));
  }
  return LoadTrainConfig("", pairs);
}

std::string DescribeDifference(absl::string_view before, absl::string_view now) {
  std::vector<std::string> old_lines = absl::StrSplit(before, '\n');
  std::vector<std::string> new_lines = absl::StrSplit(now, '\n');
  for (size_t i = 0; i < std::max(old_lines.size(), new_lines.size()); ++i) {
    std::string old_line = i < old_lines.size() ? old_lines[i] : "nothing";
    std::string new_line = i < new_lines.size() ? new_lines[i] : "nothing";
    if (old_line != new_line) return absl::StrCat("it had ", old_line, ", now there is ", new_line);
  }
  return "";
}

}  // namespace weft::train
