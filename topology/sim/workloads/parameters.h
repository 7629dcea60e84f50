// The `key=value,...` behind a workload's name, and the table that says which keys there are.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_PARAMETERS_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace weft::topology {

enum class ParameterType : uint8_t {
  kCount,      // a whole number from `least` to `most`
  kFraction,   // a real number, likewise
  kBytes,      // "64KiB", likewise, in bytes
  kDuration,   // "1.5us", likewise, in seconds
  kBandwidth,  // "400Gbps", likewise, in Gbit/s
  kChoice,     // one of `choices`, separated by '|'
};

struct Parameter {
  const char* name;
  ParameterType type;
  const char* fallback;  // as it would be written; "" of a number: none, `given` is false
  double least, most;
  const char* choices;
  const char* help;
};

// All keys of a table, each with its value or its fallback.
class Parameters {
 public:
  // `text`: "key=value,key=value" or nothing. InvalidArgument: a key that the table lacks (naming
  // the nearest and all), one given twice, a value that is none or out of range.
  static absl::StatusOr<Parameters> Parse(absl::string_view text,
                                          absl::Span<const Parameter> table);

  int64_t Count(absl::string_view name) const;
  double Fraction(absl::string_view name) const;
  Bytes ByteCount(absl::string_view name) const;
  absl::Duration Time(absl::string_view name) const;
  Bandwidth Rate(absl::string_view name) const;
  const std::string& Choice(absl::string_view name) const;
  bool Given(absl::string_view name) const;  // by the text, not by a fallback

 private:
  struct Value {
    const Parameter* parameter;
    bool given = false;
    std::string text;
    double number = 0;
  };
  absl::Status Set(Value& value, absl::string_view text);
  const Value& Find(absl::string_view name) const;
  std::vector<Value> values_;
};

// "bytes=2MB (up to 1 TiB): of each transfer", a line a parameter, each after `indent`.
std::string ParametersHelp(absl::Span<const Parameter> table, absl::string_view indent);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_PARAMETERS_H_
