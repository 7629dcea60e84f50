// A record that one process at a time owns, in the job's store or in etcd: the driver's state, or
// an executor's report. Each write is a compare-and-set against the owner's last text, so that an
// owner whose place another has taken changes nothing, and learns of it.
//
// Two things make that safe. Every text holds a random token of its writer, as two processes that
// take a record at once would else write the same text and both find it there. And a write that
// runs out of time may have had its effect: what the key then holds has the owner's token.
//
// Used by one thread.
#ifndef WEFT_TOOLS_DRIVER_OWN_RECORD_H_
#define WEFT_TOOLS_DRIVER_OWN_RECORD_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/store/store.h"

namespace weft::driver {

// Where one record is kept.
class RecordKeeper {
 public:
  virtual ~RecordKeeper() = default;
  virtual const std::string& name() const = 0;  // of the record, for messages
  // Empty: it is not there.
  virtual absl::StatusOr<std::string> Read() = 0;
  // As Store::CompareSet: what the record holds afterwards.
  virtual absl::StatusOr<std::string> CompareSet(absl::string_view expected,
                                                 absl::string_view desired) = 0;
};

// What each text of an owner has to hold: 32 hexadecimal digits, drawn.
std::string NewWriterToken();

class OwnRecord {
 public:
  // A key of `store`, which outlives this.
  OwnRecord(collectives::Store* store, std::string key, std::string token = NewWriterToken());
  OwnRecord(std::unique_ptr<RecordKeeper> keeper, std::string token);

  const std::string& token() const { return token_; }

  // Takes the record from whoever has it: writes what `next` makes of the text that is there
  // (empty: none is), again where somebody else was faster. An error of `next` ends that.
  absl::Status Take(absl::FunctionRef<absl::StatusOr<std::string>(absl::string_view before)> next);

  // Writes `text` in the place of the last one. After an error the record may hold `text`, but for:
  //   kAborted             another has the record, whose text `other` then is;
  //   kFailedPrecondition  an earlier call, although it ran out of time, has left `other`, which is
  //                        the last text from here on: the owner decides anew what follows on it;
  //   kDataLoss            the store has no such record any more.
  absl::Status Replace(std::string text, std::string* other);
  // The same for a text that says all, so that one which an earlier call has left although it ran
  // out of time is replaced as well.
  absl::Status ReplaceAny(std::string text, std::string* other);

 private:
  std::unique_ptr<RecordKeeper> keeper_;
  std::string token_;
  std::string text_;  // as the store has it, as far as it has answered
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_OWN_RECORD_H_
