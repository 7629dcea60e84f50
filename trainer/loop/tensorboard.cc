#include "trainer/loop/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/host_name.h"
#include "base/little_endian.h"
#include "base/protobuf.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

uint32_t Masked(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

}  // namespace

absl::StatusOr<std::unique_ptr<TensorBoardLog>> TensorBoardLog::Open(const std::string& folder,
                                                                     absl::Time now) {
  WEFT_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string path = absl::StrCat(folder, "/events.out.tfevents.", absl::ToUnixSeconds(now),
                                        ".", HostName(), ".", getpid());
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<TensorBoardLog> log(new TensorBoardLog(path, file));
  ProtobufWriter version;
  version.Double(1, Seconds(now));
  version.Bytes(3, "brain.Event:2");
  WEFT_RETURN_IF_ERROR(log->Write(version.text()));
  return log;
}

TensorBoardLog::~TensorBoardLog() { close(file_); }

absl::Status TensorBoardLog::Append(int64_t step, absl::Time now,
                                    absl::Span<const std::pair<const char*, double>> values) {
  ProtobufWriter summary;
  for (const auto& [tag, number] : values) {
    ProtobufWriter value;
    value.Bytes(1, tag);
    value.Float(2, static_cast<float>(number));
    summary.Message(1, value);
  }
  ProtobufWriter event;
  event.Double(1, Seconds(now));
  event.Varint(2, static_cast<uint64_t>(step));
  event.Message(5, summary);
  return Write(event.text());
}

absl::Status TensorBoardLog::Write(const std::string& event) {
  std::string record;
  PutLittle(record, uint64_t{event.size()});
  PutLittle(record, Masked(record));
  record += event;
  PutLittle(record, Masked(event));
  absl::string_view left = record;
  while (!left.empty()) {
    const ssize_t written = write(file_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path_));
    left.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
