#include "tools/driver/own_record.h"

#include <sodium.h>

#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"

namespace weft::driver {
namespace {

// For the value of a key that is there.
constexpr absl::Duration kReadPatience = absl::Seconds(10);

std::string NewToken() {
  std::array<char, 16> random;
  randombytes_buf(random.data(), random.size());
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

}  // namespace

OwnRecord::OwnRecord(collectives::Store* store, std::string key)
    : store_(store), key_(std::move(key)), token_(NewToken()) {}

absl::Status OwnRecord::Take(
    absl::FunctionRef<absl::StatusOr<std::string>(absl::string_view before)> next) {
  WEFT_ASSIGN_OR_RETURN(const bool is_there, store_->Check({key_}));
  std::string before;
  if (is_there) {
    WEFT_ASSIGN_OR_RETURN(before, store_->Get(key_, kReadPatience));
  }
  while (true) {
    WEFT_ASSIGN_OR_RETURN(text_, next(before));
    WEFT_ASSIGN_OR_RETURN(std::string held, store_->CompareSet(key_, before, text_));
    if (held == text_) return absl::OkStatus();
    before = std::move(held);
  }
}

absl::Status OwnRecord::Replace(std::string text, std::string* other) {
  WEFT_ASSIGN_OR_RETURN(std::string held, store_->CompareSet(key_, text_, text));
  if (held == text) {
    text_ = std::move(text);
    return absl::OkStatus();
  }
  if (held == text_) return absl::DataLossError(absl::StrCat("the store has lost '", key_, "'"));
  *other = std::move(held);
  if (!absl::StrContains(*other, token_)) {
    return absl::AbortedError(absl::StrCat("another process has taken '", key_, "'"));
  }
  text_ = *other;
  return absl::FailedPreconditionError(absl::StrCat(
      "'", key_, "' holds what this process wrote before, although it got no answer then"));
}

absl::Status OwnRecord::ReplaceAny(std::string text, std::string* other) {
  const absl::Status status = Replace(text, other);
  return absl::IsFailedPrecondition(status) ? Replace(std::move(text), other) : status;
}

}  // namespace weft::driver
