// Controllers by name, with their parameters: what command lines, settings files and the tuner use.
//
//   "swift"                     as its paper has it
//   "swift:beta=0.6,hop=0.1"    other parameters
//
// Settings files of weft-cc hold one such line.
#ifndef WEFT_NET_CC_REGISTRY_H_
#define WEFT_NET_CC_REGISTRY_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "net/cc/controller.h"
#include "net/cc/dcqcn.h"

namespace weft::net {

enum class ControllerKind : uint8_t {
  kFixed,
  kDcqcn,
  kSwift,
  kMswift,
  kHybrid,
  kNscc,
  kCredit,  // the sender's part: a window for what credits allow; the receiver's is credit.h
  kHpcc,
};
absl::string_view ToString(ControllerKind kind);
absl::Span<const ControllerKind> AllControllers();

struct ParameterInfo {
  std::string name;
  double value = 0;  // default
  double min = 0, max = 0;
  std::string meaning;  // with its unit
};
std::vector<ParameterInfo> ParametersOf(ControllerKind kind);

struct ControllerSpec {
  ControllerKind kind = ControllerKind::kFixed;
  std::vector<std::pair<std::string, double>> parameters;  // that differ from the default
};
// InvalidArgument, naming what is known: no such controller, no such parameter, no number, out of
// its range.
absl::StatusOr<ControllerSpec> ParseController(absl::string_view text);
std::string ToString(const ControllerSpec& spec);  // ParseController's inverse
// As ParseController(), or "@FILE" for one that weft-cc tune --out has written: its first line.
// Errors name the file.
absl::StatusOr<ControllerSpec> ReadController(absl::string_view text);

// `spec` as ParseController() returns it; aborts on parameters that it would refuse.
std::unique_ptr<Controller> MakeController(const ControllerSpec& spec, const PathFacts& facts);

// Parameters of a spec of kDcqcn, for NICs, which run DCQCN themselves (net/roce/tuning.h).
DcqcnParameters DcqcnOf(const ControllerSpec& spec);

// All of them with their parameters, for --help.
std::string ControllerHelp();

}  // namespace weft::net

#endif  // WEFT_NET_CC_REGISTRY_H_
