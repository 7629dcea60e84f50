#include "net/roce/adaptive_retransmission.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/command.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);
constexpr absl::string_view kSupported = "roce_adp_retrans_field_select";
constexpr absl::string_view kSwitch = "roce_adp_retrans_en";

// The last line that says anything.
absl::string_view LastWords(absl::string_view text) {
  absl::string_view last = "it said nothing";
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) last = line;
  }
  return last;
}

// What the program says about the register, with `words` behind its name.
absl::StatusOr<std::string> AskRegister(const std::string& pci,
                                        const std::vector<std::string>& words) {
  for (const char* program : {"mlxreg", "mstreg"}) {
    std::vector<std::string> arguments = {program, "-d", pci, "--yes", "--reg_name", "ROCE_ACCL"};
    arguments.insert(arguments.end(), words.begin(), words.end());
    absl::StatusOr<CommandOutput> output = RunCommand(arguments, kPatience);
    if (absl::IsNotFound(output.status())) continue;
    if (!output.ok()) return output.status();
    if (output->status == 0) return std::move(output->text);
    return absl::UnavailableError(absl::StrCat(program, " -d ", pci, " ended with status ",
                                               output->status, ": ", LastWords(output->text)));
  }
  return absl::NotFoundError(
      "neither mlxreg (NVIDIA's firmware tools) nor mstreg (mstflint) is installed");
}

// The value in a line "roce_adp_retrans_en    | 0x00000001".
std::optional<uint32_t> FieldOf(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> cells = absl::StrSplit(line, '|');
    uint32_t value = 0;
    if (cells.size() == 2 && absl::StripAsciiWhitespace(cells[0]) == name &&
        absl::SimpleHexAtoi(absl::StripAsciiWhitespace(cells[1]), &value)) {
      return value;
    }
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<bool> ReadAdaptiveRetransmission(const std::string& pci) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, AskRegister(pci, {"--get"}));
  const std::optional<uint32_t> supported = FieldOf(text, kSupported);
  const std::optional<uint32_t> on = FieldOf(text, kSwitch);
  if (!on.has_value() || supported == 0) {
    return absl::UnimplementedError(absl::StrCat("the firmware of ", pci,
                                                 " has no such switch (ROCE_ACCL, ",
                                                 on.has_value() ? kSupported : kSwitch, ")"));
  }
  return *on != 0;
}

absl::Status WriteAdaptiveRetransmission(const std::string& pci, bool on) {
  const std::string value = absl::StrCat(kSwitch, "=", on ? "0x1" : "0x0");
  WEFT_RETURN_IF_ERROR(AskRegister(pci, {"--set", value}).status());
  WEFT_ASSIGN_OR_RETURN(const bool now, ReadAdaptiveRetransmission(pci));
  if (now == on) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the firmware of ", pci, " did not keep ", value));
}

}  // namespace weft::net
