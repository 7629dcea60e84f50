#include "net/tcp/frame.h"

#include "absl/strings/str_cat.h"
#include "net/tcp/source_ports.h"
#include "topology/plan/path_reports.h"

namespace weft::net {

absl::Status CheckFrame(const FrameHeader& header) {
  auto bad = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("not a frame of ours: ", parts...));
  };
  if (header.magic != kFrameMagic) {
    return bad("magic ", absl::Hex(header.magic), " instead of ", absl::Hex(kFrameMagic));
  }
  if (header.version != kWireVersion) {
    return bad("version ", header.version, " instead of ", kWireVersion);
  }
  uint64_t longest = 0;
  switch (header.type) {
    case FrameType::kClearToSend:
    case FrameType::kMismatch:
    case FrameType::kGoodbye:
    case FrameType::kArrived:
    case FrameType::kAlive:
    case FrameType::kResume:
      break;
    case FrameType::kTaken:
      longest = kLinkSocketsMax * sizeof(uint64_t);
      break;
    case FrameType::kData:
      longest = kFrameBytesMax;
      break;
    case FrameType::kAddress:
      longest = kWorkerAddressBytesMax;
      break;
    case FrameType::kNotice:
      longest = kNoticeBytesMax;
      break;
    case FrameType::kPaths:
      longest = topology::PathReports::kTextBytesMax;
      break;
    default:
      return bad("type ", static_cast<int>(header.type));
  }
  if (header.length > longest) {
    return bad("type ", static_cast<int>(header.type), " with ", header.length,
               " bytes of payload; at most ", longest);
  }
  return absl::OkStatus();
}

absl::Status CheckPiece(const FrameHeader& header, uint64_t capacity) {
  bool fits = header.total <= capacity && header.offset <= header.total &&
              header.length <= header.total - header.offset;
  bool empty_only_if_message_is = header.length > 0 || header.total == 0;
  bool whole_lines = header.offset % 64 == 0 &&
                     (header.length % 64 == 0 || header.offset + header.length == header.total);
  if (fits && empty_only_if_message_is && whole_lines) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a piece of ", header.length, " bytes at ",
                                                 header.offset, " of a message of ", header.total,
                                                 " does not fit a receive of ", capacity));
}

}  // namespace weft::net
