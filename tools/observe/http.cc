#include "tools/observe/http.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/socket_address.h"
#include "base/status.h"

namespace weft::observe {
namespace {

absl::StatusOr<std::vector<SocketAddress>> Resolve(const HttpAddress& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.port, &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address ", address.host, ":", address.port, " has no port"));
  }
  return ResolveHostPort(JoinHostPort(address.host, port));
}

const char* Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    default:
      return "Error";
  }
}

std::string Encode(const HttpResponse& response) {
  return absl::StrCat("HTTP/1.1 ", response.status, " ", Reason(response.status),
                      "\r\nContent-Type: ", response.type,
                      "\r\nContent-Length: ", response.body.size(),
                      response.status == 401 ? "\r\nWWW-Authenticate: Bearer" : "",
                      "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff"
                      "\r\nConnection: close\r\n\r\n",
                      response.body);
}

bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("!#$%&'*+-.^_`|~", c);
  });
}

absl::Time Now() { return SystemClock().Now(); }

// As in a URL: "10.0.0.1:9400", "[::1]:9400".
std::string ToText(const HttpAddress& address) {
  const bool is_ipv6 = absl::StrContains(address.host, ':');
  return absl::StrCat(is_ipv6 ? "[" : "", address.host, is_ipv6 ? "]" : "", ":", address.port);
}

// Waits until `fd` may be used; false: not before `until`.
bool Await(int fd, short events, absl::Time until) {
  pollfd wait{fd, events, 0};
  const int64_t left = absl::ToInt64Milliseconds(until - Now()) + 1;
  return left > 0 && poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, 60000))) > 0;
}

absl::StatusOr<int> ConnectTo(const HttpAddress& address, absl::Time until) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<SocketAddress> all, Resolve(address));
  absl::Status last = absl::UnavailableError("it has no address");
  for (const SocketAddress& at : all) {
    const int fd = socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return ErrnoStatus(errno, "make a socket");
    int error = connect(fd, at.get(), at.size()) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof(error);
      error = ETIMEDOUT;
      if (Await(fd, POLLOUT, until)) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return fd;
    close(fd);
    last = ErrnoStatus(error, absl::StrCat("connect to ", ToText(address)));
  }
  return last;
}

// Whether the head of an answer says that its body comes in chunks.
bool IsChunked(absl::string_view head) {
  for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> header =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::EqualsIgnoreCase(header.first, "transfer-encoding") &&
        absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(header.second), "chunked")) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

absl::StatusOr<HttpAddress> ParseHttpAddress(absl::string_view text) {
  absl::ConsumePrefix(&text, "http://");
  absl::ConsumeSuffix(&text, "/");
  HttpAddress address{"127.0.0.1", ""};
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    address.port = std::string(text);
  } else {
    absl::string_view host = text.substr(0, colon);
    if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
      host = host.substr(1, host.size() - 2);
    }
    if (!host.empty()) address.host = std::string(host);
    address.port = std::string(text.substr(colon + 1));
  }
  int port = -1;
  if (!absl::SimpleAtoi(address.port, &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is no address; right are 9400, :9400, 10.0.0.1:9400, [::1]:9400"));
  }
  return address;
}

HttpParse ParseHttpRequest(absl::string_view bytes, HttpRequest* request) {
  const size_t end = bytes.substr(0, kRequestBytesMax).find("\r\n\r\n");
  if (end == absl::string_view::npos) {
    return bytes.size() >= kRequestBytesMax ? HttpParse::kBad : HttpParse::kMore;
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(bytes.substr(0, end), "\r\n");
  const std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
  if (words.size() != 3 || !IsToken(words[0]) || words[1].empty() || words[1][0] != '/' ||
      !absl::StartsWith(words[2], "HTTP/1.")) {
    return HttpParse::kBad;
  }
  for (char c : words[1]) {
    if (static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 127) {
      return HttpParse::kBad;
    }
  }
  *request = HttpRequest{};
  request->method = std::string(words[0]);
  request->path = std::string(words[1].substr(0, words[1].find('?')));
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t colon = lines[i].find(':');
    if (colon == absl::string_view::npos || !IsToken(lines[i].substr(0, colon))) {
      return HttpParse::kBad;
    }
    if (absl::EqualsIgnoreCase(lines[i].substr(0, colon), "authorization")) {
      request->authorization = std::string(absl::StripAsciiWhitespace(lines[i].substr(colon + 1)));
    }
  }
  return HttpParse::kDone;
}

absl::StatusOr<HttpServer> HttpServer::Listen(const HttpServerOptions& options) {
  const std::string where = ToText(options.address);
  WEFT_ASSIGN_OR_RETURN(const std::vector<SocketAddress> all, Resolve(options.address));
  if (all.empty()) return absl::InvalidArgumentError(absl::StrCat(where, " has no address"));
  const SocketAddress& address = all.front();
  if (!address.is_loopback() && options.token.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("listening on ", where,
                     ", which others reach, needs a token, as weft-agent --token-file takes it"));
  }
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ErrnoStatus(errno, "make a socket");
  const int yes = 1, no = 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  // "::" is IPv4's addresses as well, whatever the host's default; no more than refused of others.
  setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));
  if (bind(fd, address.get(), address.size()) != 0 || listen(fd, 64) != 0) {
    const int error = errno;
    close(fd);
    return ErrnoStatus(error, absl::StrCat("listen on ", where));
  }
  return HttpServer(options, fd, LocalAddress(fd).port());
}

HttpServer::HttpServer(HttpServer&& other) noexcept
    : options_(std::move(other.options_)),
      fd_(std::exchange(other.fd_, -1)),
      port_(other.port_),
      turned_away_(other.turned_away_),
      connections_(std::move(other.connections_)) {}

HttpServer::~HttpServer() {
  for (const Connection& connection : connections_) close(connection.fd);
  if (fd_ >= 0) close(fd_);
}

void HttpServer::Accept() {
  while (true) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (connections_.size() >= options_.connections_max) {
      ++turned_away_;
      close(fd);
      continue;
    }
    connections_.push_back({fd, Now() + options_.patience, "", "", 0});
  }
}

bool HttpServer::IsOpen(const std::string& path) const {
  const std::vector<std::string>& open = options_.open_paths;
  return std::find(open.begin(), open.end(), path) != open.end();
}

bool HttpServer::Serve(Connection& connection, const Handler& handler) {
  // What has come is read all the same: this process may be the one that was kept waiting.
  const bool is_late = Now() >= connection.until;
  if (connection.out.empty()) {
    char buffer[4096];
    const ssize_t got = read(connection.fd, buffer, sizeof(buffer));
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (got < 0) return !is_late;
    connection.in.append(buffer, static_cast<size_t>(got));
    HttpRequest request;
    const HttpParse parsed = ParseHttpRequest(connection.in, &request);
    if (parsed == HttpParse::kMore) return !is_late;
    HttpResponse response;
    if (parsed == HttpParse::kBad) {
      ++turned_away_;
      response = {400, "text/plain", "no request that is understood here\n"};
    } else if (!options_.token.empty() && !IsOpen(request.path) &&
               !SameSecret(request.authorization, absl::StrCat("Bearer ", options_.token))) {
      ++turned_away_;
      response = {401, "text/plain", "the token is missing or wrong\n"};
    } else if (request.method != "GET" && !(request.method == "POST" && options_.takes_posts &&
                                            !options_.token.empty() && !IsOpen(request.path))) {
      response = {405, "text/plain", "GET only\n"};
    } else {
      response = handler(request);
    }
    connection.out = Encode(response);
  }
  while (connection.written < connection.out.size()) {
    const ssize_t sent = send(connection.fd, connection.out.data() + connection.written,
                              connection.out.size() - connection.written, MSG_NOSIGNAL);
    if (sent < 0) return (errno == EAGAIN || errno == EINTR) && !is_late;
    connection.written += static_cast<size_t>(sent);
  }
  shutdown(connection.fd, SHUT_WR);
  return false;
}

void HttpServer::Turn(const Handler& handler, absl::Duration wait) {
  std::vector<pollfd> waits = {{fd_, POLLIN, 0}};
  for (const Connection& connection : connections_) {
    waits.push_back(
        {connection.fd, static_cast<short>(connection.out.empty() ? POLLIN : POLLOUT), 0});
    wait = std::min(wait, std::max(connection.until - Now(), absl::ZeroDuration()));
  }
  poll(waits.data(), waits.size(), static_cast<int>(absl::ToInt64Milliseconds(wait)));
  std::vector<Connection> kept;
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = connections_[i];
    const bool ready = waits[i + 1].revents != 0 || Now() >= connection.until;
    if (!ready || Serve(connection, handler)) {
      kept.push_back(std::move(connection));
    } else {
      close(connection.fd);
    }
  }
  connections_ = std::move(kept);
  if (waits[0].revents != 0) Accept();
}

absl::StatusOr<std::string> JoinChunks(absl::string_view body) {
  std::string joined;
  while (true) {
    // SIZE in hexadecimal digits, perhaps ";" and more, then so many bytes; the last has none.
    const size_t line = body.find("\r\n");
    if (line == body.npos) break;
    const absl::string_view digits = body.substr(0, std::min(line, body.find(';')));
    uint64_t size = 0;
    if (digits.empty() || digits.size() > 8 || !absl::SimpleHexAtoi(digits, &size)) break;
    body.remove_prefix(line + 2);
    if (size == 0) return joined;
    if (body.size() < size + 2 || body.substr(size, 2) != "\r\n") break;
    joined.append(body.data(), size);
    body.remove_prefix(size + 2);
  }
  return absl::DataLossError("the body's chunks are not whole");
}

absl::StatusOr<std::string> HttpFetch(const HttpAddress& address, const HttpCall& call) {
  const absl::Time until = Now() + call.patience;
  const std::string name = absl::StrCat("http://", ToText(address), call.path);
  WEFT_ASSIGN_OR_RETURN(const int fd, ConnectTo(address, until));
  const std::unique_ptr<const int, void (*)(const int*)> closer(&fd,
                                                                [](const int* f) { close(*f); });
  std::string out =
      absl::StrCat(call.method, " ", call.path, " HTTP/1.1\r\nHost: ", ToText(address),
                   "\r\nConnection: close\r\n");
  if (!call.token.empty()) absl::StrAppend(&out, "Authorization: Bearer ", call.token, "\r\n");
  if (call.method != "GET") {
    absl::StrAppend(&out, "Content-Type: ", call.type, "\r\nContent-Length: ", call.body.size(),
                    "\r\n");
  }
  absl::StrAppend(&out, "\r\n", call.body);
  for (size_t at = 0; at < out.size();) {
    const ssize_t sent = send(fd, out.data() + at, out.size() - at, MSG_NOSIGNAL);
    if (sent > 0) {
      at += static_cast<size_t>(sent);
    } else if ((errno != EAGAIN && errno != EINTR) || !Await(fd, POLLOUT, until)) {
      return absl::UnavailableError(absl::StrCat(name, " takes no request"));
    }
  }
  std::string in;
  char buffer[65536];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got == 0) break;
    if (got > 0) {
      in.append(buffer, static_cast<size_t>(got));
      if (in.size() > call.bytes_max) {
        return absl::ResourceExhaustedError(
            absl::StrCat(name, " answers with more than ", call.bytes_max, " bytes"));
      }
    } else if ((errno != EAGAIN && errno != EINTR) || !Await(fd, POLLIN, until)) {
      return absl::UnavailableError(absl::StrCat(name, " does not answer"));
    }
  }
  const size_t body = in.find("\r\n\r\n");
  const std::vector<std::string> words =
      absl::StrSplit(in.substr(0, in.find("\r\n")), absl::MaxSplits(' ', 2));
  int status = 0;
  if (body == std::string::npos || words.size() < 2 || !absl::SimpleAtoi(words[1], &status)) {
    return absl::DataLossError(absl::StrCat(name, " answers with something that is not HTTP"));
  }
  if (status < 200 || status > 299) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " answers with status ", status, ": ",
                     in.substr(body + 4, std::min<size_t>(in.size() - body - 4, 200))));
  }
  if (IsChunked(absl::string_view(in).substr(0, body))) {
    return JoinChunks(absl::string_view(in).substr(body + 4));
  }
  return in.substr(body + 4);
}

}  // namespace weft::observe
