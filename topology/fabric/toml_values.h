// Values of a TOML file with errors that name file and line. Internal to topology/fabric.
#ifndef WEFT_TOPOLOGY_FABRIC_TOML_VALUES_H_
#define WEFT_TOPOLOGY_FABRIC_TOML_VALUES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/toml.h"
#include "base/units.h"

namespace weft::topology {

class TomlValues {
 public:
  explicit TomlValues(std::string file) : file_(std::move(file)) {}
  const std::string& file() const { return file_; }

  std::string Where(const toml::value& at) const;  // "fabric.toml:12"
  template <typename... What>
  absl::Status Error(const toml::value& at, const What&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(Where(at), ": ", what...));
  }
  // The same error, at a place of the file.
  absl::Status At(const toml::value& at, const absl::Status& status) const;

  // Null: the table has no such key.
  static const toml::value* Get(const toml::value& table, const std::string& key);
  // `value` must be a table with no other keys than these. `what` is what it is called.
  absl::Status CheckKeys(const toml::value& value, absl::string_view what,
                         const std::vector<std::string>& known) const;
  absl::StatusOr<std::string> Text(const toml::value& value, absl::string_view key) const;

  // Each leaves `field` as it is where the key is absent.
  absl::Status Read(const toml::value& table, const std::string& key, Bandwidth& field) const;
  absl::Status Read(const toml::value& table, const std::string& key, absl::Duration& field) const;
  absl::Status Read(const toml::value& table, const std::string& key, Bytes& field) const;
  absl::Status Read(const toml::value& table, const std::string& key, int least, int most,
                    int& field) const;

 private:
  const std::string file_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_TOML_VALUES_H_
