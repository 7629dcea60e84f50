// Settings as TOML: a key "section.name" is `name` in the table [section].
#ifndef WEFT_TRAINER_CONFIG_TOML_H_
#define WEFT_TRAINER_CONFIG_TOML_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/settings.h"
#include "base/toml.h"

namespace weft::train {

// A TOML value as the text that Settings parses; InvalidArgument for what is no number, text or
// truth value.
absl::StatusOr<std::string> SettingText(const toml::value& value);
// Sets all keys of a file. Errors name the file, the line and the key.
absl::Status ApplyFile(const std::string& path, Settings& settings);
// Every key with the value in effect, readable by ApplyFile; without model.preset and model.style,
// since the keys that these stand for are all there.
std::string ToToml(const Settings& settings);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CONFIG_TOML_H_
