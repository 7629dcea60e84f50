// The store's journal, which a server writes so that another can go on in its place. A file of
// records, each with its length and a checksum; a record that was cut off by the death of its
// writer ends the file. Records are inputs (a client came, asked, left), so that reading them back
// runs the same state machine; a snapshot, which replaces a long history, adds values and replies.
// Format: docs/wire-format.md.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_JOURNAL_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_JOURNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file_descriptor.h"

namespace weft::collectives {

struct StoreRecord {
  enum class Kind : uint8_t {
    kServer = 1,    // text: the server's number
    kSession = 2,   // number: the session; text: its hello
    kRequest = 3,   // number: the session; text: a request's frame
    kExpelled = 4,  // number: the session; other: a request whose wait ended with an error
    kEnd = 5,       // number: the session that was forgotten
    kValue = 6,     // number: the version; key; text: the value; job
    kServed = 7,    // key of a barrier that has served; job
    kReply = 8,     // number: the session; other: the request; text: a reply's frame
  };
  Kind kind = Kind::kServer;
  uint64_t number = 0;
  uint64_t other = 0;
  std::string job;
  std::string key;
  std::string text;
};

void AppendRecord(std::string& out, const StoreRecord& record);
// Visits the records up to the first that is cut off or damaged; gives the bytes before that.
// An error of `visit` ends it.
absl::StatusOr<size_t> ReadRecords(absl::string_view bytes,
                                   const std::function<absl::Status(StoreRecord)>& visit);

// The file FOLDER/store.journal, which this user alone may read, held by one process at a time.
class StoreJournal {
 public:
  // kAlreadyExists: another process has it. Makes the folder.
  static absl::StatusOr<std::unique_ptr<StoreJournal>> Open(const std::string& folder);

  // Everything in it. What follows the first record that is cut off or damaged is removed, with a
  // warning, and kept in FOLDER/store.journal.cut. kDataLoss: it is no journal, and is left alone.
  absl::Status Read(const std::function<absl::Status(StoreRecord)>& visit);
  absl::Status Append(absl::string_view records);
  // In place of everything before; atomic. After an error everything before is still there.
  absl::Status Replace(absl::string_view records);
  // Nobody may go on from it any more: whoever opens it next begins anew. It stays held. An error:
  // it could neither be emptied nor removed.
  absl::Status Invalidate();
  size_t bytes() const { return bytes_; }

 private:
  StoreJournal(std::string path, FileDescriptor lock, FileDescriptor file)
      : path_(std::move(path)), lock_(std::move(lock)), file_(std::move(file)) {}

  const std::string path_;
  FileDescriptor lock_;
  FileDescriptor file_;
  size_t bytes_ = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_JOURNAL_H_
