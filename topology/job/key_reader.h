// Keys and values of one section of a description, from a file or from the command line, read by
// type, with errors that name origin, key and value.
#ifndef WEFT_TOPOLOGY_JOB_KEY_READER_H_
#define WEFT_TOPOLOGY_JOB_KEY_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/units.h"

namespace weft::topology {

struct KeyValue {
  std::string key;
  std::string value;   // a list: its elements joined by "-"
  std::string origin;  // "job.toml:7", "--layout"
};

struct Section {
  std::string name;    // "layout", "traffic"
  std::string origin;  // of its head
  std::vector<KeyValue> entries;
};

// "tensor=8,data=192".
absl::StatusOr<Section> SectionFromWords(const std::string& name, const std::string& text,
                                         const std::string& origin);

// Each Read leaves `out` alone where the key is absent. The first error is kept, and returned by
// Done(), which also refuses keys that nothing read. Of a key given twice, the last counts.
class KeyReader {
 public:
  explicit KeyReader(const Section& section) : section_(section) {}

  void Read(absl::string_view key, int& out, int64_t least, int64_t most);
  void Read(absl::string_view key, int64_t& out, int64_t least, int64_t most);
  void Read(absl::string_view key, double& out, double least, double most);
  void Read(absl::string_view key, bool& out);
  void Read(absl::string_view key, std::string& out);
  void Read(absl::string_view key, Bytes& out);
  void Read(absl::string_view key, Bandwidth& out);
  void Read(absl::string_view key, absl::Duration& out);
  // `parse` takes the text and gives a StatusOr.
  template <typename T, typename Parse>
  void ReadWith(absl::string_view key, T& out, Parse parse) {
    const KeyValue* entry = Find(key);
    if (entry == nullptr) return;
    auto value = parse(absl::string_view(entry->value));
    if (value.ok()) {
      out = *std::move(value);
    } else {
      Fail(*entry, value.status().message());
    }
  }

  bool Has(absl::string_view key) { return Find(key) != nullptr; }
  absl::Status Done();

 private:
  const KeyValue* Find(absl::string_view key);
  void Fail(const KeyValue& entry, absl::string_view what);

  const Section& section_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_KEY_READER_H_
