// Errors are absl::Status. Three blames, three forms:
//   the world's (a file is missing, a peer died)  -> a Status, returned
//   the caller's (a wrong argument)               -> a Status of InvalidArgument, returned
//   ours (an invariant is broken)                 -> WEFT_CHECK: prints the operands and aborts,
//                                                    in release too
#ifndef WEFT_BASE_STATUS_H_
#define WEFT_BASE_STATUS_H_

#include <cerrno>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

// The status for errno, with what was being done: Annotate("connect to 10.0.0.1:29500").
absl::Status ErrnoStatus(int error_number, absl::string_view doing);

// The same code and payloads (base/failure.h), the message preceded by "<context>: ".
absl::Status Annotate(const absl::Status& status, absl::string_view context);

namespace internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& details);
}  // namespace internal

}  // namespace weft

#define WEFT_CONCAT_INNER(a, b) a##b
#define WEFT_CONCAT(a, b) WEFT_CONCAT_INNER(a, b)

#define WEFT_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                  \
    if (absl::Status weft_status = (expression); !weft_status.ok()) return weft_status; \
  } while (false)

#define WEFT_ASSIGN_OR_RETURN(declaration, expression) \
  WEFT_ASSIGN_OR_RETURN_INNER(WEFT_CONCAT(weft_or_, __LINE__), declaration, expression)
#define WEFT_ASSIGN_OR_RETURN_INNER(holder, declaration, expression) \
  auto holder = (expression);                                        \
  if (!holder.ok()) return std::move(holder).status();               \
  declaration = std::move(holder).value()

// WEFT_CHECK(a < b, "a=" << a << " b=" << b)
#define WEFT_CHECK(condition, details)                                                  \
  do {                                                                                  \
    if (!(condition)) [[unlikely]] {                                                    \
      std::ostringstream weft_stream;                                                   \
      weft_stream << details;                                                           \
      ::weft::internal::CheckFailed(__FILE__, __LINE__, #condition, weft_stream.str()); \
    }                                                                                   \
  } while (false)

#endif  // WEFT_BASE_STATUS_H_
