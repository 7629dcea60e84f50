#include "tools/driver/kubernetes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/command.h"
#include "base/file_descriptor.h"
#include "base/first_line.h"
#include "base/status.h"
#include "base/temporary_path.h"

namespace weft::driver {
namespace {

constexpr absl::Duration kCallMost = absl::Seconds(20);

// A header in a file that nobody else reads; on a command line everybody would.
absl::StatusOr<std::string> HeaderFile(const std::string& token) {
  WEFT_ASSIGN_OR_RETURN(std::string path, TemporaryPath("weft-token"));
  FileDescriptor file(mkostemp(path.data(), O_CLOEXEC));  // mode 0600
  if (!file) return ErrnoStatus(errno, absl::StrCat("make ", path));
  const std::string text = absl::StrCat("Authorization: Bearer ", token, "\n");
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    unlink(path.c_str());
    return absl::UnavailableError(absl::StrCat("cannot write ", path));
  }
  return path;
}

}  // namespace

bool IsDnsSubdomain(absl::string_view name) {
  const auto is_right = [](absl::string_view label) {
    return !label.empty() && label.front() != '-' && label.back() != '-' &&
           std::all_of(label.begin(), label.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
           });
  };
  const std::vector<absl::string_view> labels = absl::StrSplit(name, '.');
  return name.size() <= 253 && std::all_of(labels.begin(), labels.end(), is_right);
}

absl::StatusOr<Kubernetes> Kubernetes::Find(const std::string& account) {
  Kubernetes found;
  found.account_ = account;
  const char* host = std::getenv("KUBERNETES_SERVICE_HOST");
  const char* port = std::getenv("KUBERNETES_SERVICE_PORT");
  if (host == nullptr || port == nullptr) {
    return absl::FailedPreconditionError(
        "--site kubernetes: KUBERNETES_SERVICE_HOST and _PORT are not set, as they are in a pod");
  }
  const bool is_ipv6 = std::string(host).find(':') != std::string::npos;
  found.url_ = is_ipv6 ? absl::StrCat("https://[", host, "]:", port)
                       : absl::StrCat("https://", host, ":", port);
  found.namespace_ = FirstLine(account + "/namespace");
  std::error_code error;
  if (!IsDnsSubdomain(found.namespace_) || FirstLine(account + "/token").empty() ||
      !std::filesystem::exists(account + "/ca.crt", error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--site kubernetes: ", account, " has not the files token, ca.crt and namespace"));
  }
  const auto curl = RunCommand({"curl", "--version"}, kCallMost);
  if (!curl.ok()) return Annotate(curl.status(), "--site kubernetes needs curl");
  return found;
}

absl::StatusOr<std::string> Kubernetes::Call(const std::string& method, const std::string& path,
                                             const std::string& body) const {
  // Read each time: a token lasts an hour.
  WEFT_ASSIGN_OR_RETURN(const std::string header, HeaderFile(FirstLine(account_ + "/token")));
  const auto remove = absl::MakeCleanup([&] { unlink(header.c_str()); });
  std::vector<std::string> command = {
      "curl",     "--silent",           "--show-error",  "--max-time", "15",
      "--cacert", account_ + "/ca.crt", "--header",      "@" + header, "--request",
      method,     "--write-out",        "\n%{http_code}"};
  if (!body.empty()) {
    command.insert(command.end(),
                   {"--header", "Content-Type: application/merge-patch+json", "--data", body});
  }
  command.push_back(url_ + path);
  const std::string doing = absl::StrCat(method, " ", url_, path);
  WEFT_ASSIGN_OR_RETURN(const CommandOutput said, RunCommand(command, kCallMost));
  if (said.status != 0) return absl::UnavailableError(absl::StrCat(doing, ": ", said.text));
  const size_t end = said.text.rfind('\n');
  const std::string status = said.text.substr(end + 1);
  std::string text = said.text.substr(0, end);
  if (absl::StartsWith(status, "2")) return text;
  const std::string why = absl::StrCat(doing, ": status ", status, ": ", text.substr(0, 500));
  return status == "404" ? absl::NotFoundError(why) : absl::UnavailableError(why);
}

absl::Status Kubernetes::Evict(const std::string& pod) const {
  if (!IsDnsSubdomain(pod)) {
    return absl::InvalidArgumentError(absl::StrCat("'", pod, "' names no pod"));
  }
  const std::string path = absl::StrCat("/api/v1/namespaces/", namespace_, "/pods/", pod);
  const absl::StatusOr<std::string> found = Call("GET", path);
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(found.status());
  const nlohmann::json json = nlohmann::json::parse(*found, nullptr, false);
  const auto node = json.is_object() && json.contains("spec") && json["spec"].is_object()
                        ? json["spec"].value("nodeName", nlohmann::json())
                        : nlohmann::json();
  if (!node.is_string() || !IsDnsSubdomain(node.get<std::string>())) {
    return absl::DataLossError(absl::StrCat("the pod ", pod, " has no node"));
  }
  // A node that is gone, as one of a spot market that was taken back, gets no other pod.
  const absl::Status cordoned =
      Call("PATCH", absl::StrCat("/api/v1/nodes/", node.get<std::string>()),
           R"({"spec":{"unschedulable":true}})")
          .status();
  if (!absl::IsNotFound(cordoned)) WEFT_RETURN_IF_ERROR(cordoned);
  const absl::Status deleted = Call("DELETE", path).status();
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

}  // namespace weft::driver
