// A status that crosses LibTorch's autograd, which knows exceptions only: thrown inside an
// operation, and a status again, with its code, where the step calls the pass.
#ifndef WEFT_TRAINER_GROUPS_STATUS_ERROR_H_
#define WEFT_TRAINER_GROUPS_STATUS_ERROR_H_

#include <c10/util/Exception.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::train {

class StatusError final : public std::runtime_error {
 public:
  explicit StatusError(absl::Status status)
      : std::runtime_error(std::string(status.message())), status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

inline void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}
template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfError(value.status());
  return *std::move(value);
}

// Runs `body`, which returns a Status or a StatusOr. A StatusError becomes the status it carries;
// any other exception, LibTorch's, becomes Internal.
template <typename Body>
auto Guarded(Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const StatusError& error) {
    return error.status();
  } catch (const c10::Error& error) {
    return absl::InternalError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_STATUS_ERROR_H_
