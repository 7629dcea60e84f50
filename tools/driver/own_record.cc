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

class StoreKeeper final : public RecordKeeper {
 public:
  StoreKeeper(collectives::Store* store, std::string key) : store_(store), key_(std::move(key)) {}
  const std::string& name() const override { return key_; }
  absl::StatusOr<std::string> Read() override {
    WEFT_ASSIGN_OR_RETURN(const bool is_there, store_->Check({key_}));
    if (!is_there) return std::string();
    return store_->Get(key_, kReadPatience);
  }
  absl::StatusOr<std::string> CompareSet(absl::string_view expected,
                                         absl::string_view desired) override {
    return store_->CompareSet(key_, expected, desired);
  }

 private:
  collectives::Store* const store_;
  const std::string key_;
};

}  // namespace

std::string NewWriterToken() {
  std::array<char, 16> random;
  randombytes_buf(random.data(), random.size());
  return absl::BytesToHexString(absl::string_view(random.data(), random.size()));
}

OwnRecord::OwnRecord(collectives::Store* store, std::string key, std::string token)
    : OwnRecord(std::make_unique<StoreKeeper>(store, std::move(key)), std::move(token)) {}

OwnRecord::OwnRecord(std::unique_ptr<RecordKeeper> keeper, std::string token)
    : keeper_(std::move(keeper)), token_(std::move(token)) {}

absl::Status OwnRecord::Take(
    absl::FunctionRef<absl::StatusOr<std::string>(absl::string_view before)> next) {
  WEFT_ASSIGN_OR_RETURN(std::string before, keeper_->Read());
  while (true) {
    WEFT_ASSIGN_OR_RETURN(text_, next(before));
    WEFT_ASSIGN_OR_RETURN(std::string held, keeper_->CompareSet(before, text_));
    if (held == text_) return absl::OkStatus();
    before = std::move(held);
  }
}

absl::Status OwnRecord::Replace(std::string text, std::string* other) {
  WEFT_ASSIGN_OR_RETURN(std::string held, keeper_->CompareSet(text_, text));
  if (held == text) {
    text_ = std::move(text);
    return absl::OkStatus();
  }
  if (held == text_)
    return absl::DataLossError(absl::StrCat("the store has lost '", keeper_->name(), "'"));
  *other = std::move(held);
  if (!absl::StrContains(*other, token_)) {
    return absl::AbortedError(absl::StrCat("another process has taken '", keeper_->name(), "'"));
  }
  text_ = *other;
  return absl::FailedPreconditionError(
      absl::StrCat("'", keeper_->name(),
                   "' holds what this process wrote before, although it got no answer then"));
}

absl::Status OwnRecord::ReplaceAny(std::string text, std::string* other) {
  const absl::Status status = Replace(text, other);
  return absl::IsFailedPrecondition(status) ? Replace(std::move(text), other) : status;
}

}  // namespace weft::driver
