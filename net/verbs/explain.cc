#include "net/verbs/explain.h"

#include "absl/strings/str_cat.h"

namespace weft::net {

std::string StatusText(NicStatus status) {
  const auto text = [&](const char* words) {
    return absl::StrCat(words, " (error ", static_cast<int>(status), ")");
  };
  switch (status) {
    case NicStatus::kOk:
      return "success";
    case NicStatus::kLocalLength:
      return text("local length error");
    case NicStatus::kLocalOperation:
      return text("local queue pair operation error");
    case NicStatus::kLocalProtection:
      return text("local protection error");
    case NicStatus::kFlushed:
      return text("work request flushed");
    case NicStatus::kBadResponse:
      return text("bad response");
    case NicStatus::kLocalAccess:
      return text("local access error");
    case NicStatus::kRemoteInvalidRequest:
      return text("remote invalid request");
    case NicStatus::kRemoteAccess:
      return text("remote access error");
    case NicStatus::kRemoteOperation:
      return text("remote operation error");
    case NicStatus::kRetryExceeded:
      return text("transport retry counter exceeded");
    case NicStatus::kReceiverNotReady:
      return text("receiver-not-ready retry counter exceeded");
    case NicStatus::kRemoteAborted:
      return text("remote aborted");
    case NicStatus::kFatal:
      return text("fatal error");
    case NicStatus::kResponseTimeout:
      return text("response timeout");
    case NicStatus::kGeneral:
      return text("general error");
  }
  return text("unknown status");
}

std::string LikelyCause(NicStatus status, const VerbsOptions& options) {
  switch (status) {
    case NicStatus::kRetryExceeded:
    case NicStatus::kResponseTimeout:
      return absl::StrCat(
          "the other side did not acknowledge although it was sent to ", options.retry_count + 1,
          " times, for about ", absl::FormatDuration(options.DetectionBound() / 4),
          " (verbs.timeout ", options.timeout, ", verbs.retry_count ", options.retry_count,
          "): a link or switch on the path is down, its port or host is, packets are dropped (no "
          "lossless class for traffic class ",
          options.traffic_class,
          "), the GIDs do not reach each other, or the path carries smaller packets than the MTU; "
          "try ping between the GIDs' addresses, and look at the ports' error counters");
    case NicStatus::kReceiverNotReady:
      return "the other side has posted no receives: its process hangs, or this is a fault of Weft";
    case NicStatus::kRemoteAccess:
    case NicStatus::kRemoteInvalidRequest:
    case NicStatus::kRemoteOperation:
      return "the other side's device refused the request: its memory was deregistered or its "
             "queue "
             "pair is of another connection; look at the log of that rank";
    case NicStatus::kLocalProtection:
    case NicStatus::kLocalAccess:
    case NicStatus::kLocalLength:
    case NicStatus::kLocalOperation:
      return "this side's device refused the request: memory was freed or unmapped while a send or "
             "receive used it";
    case NicStatus::kFlushed:
    case NicStatus::kRemoteAborted:
      return "the queue pair had failed before; the first error on it says why";
    case NicStatus::kFatal:
    case NicStatus::kGeneral:
    case NicStatus::kBadResponse:
    case NicStatus::kOk:
      break;
  }
  return "the device or its firmware failed; look at dmesg";
}

}  // namespace weft::net
