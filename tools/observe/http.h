// As much of HTTP/1.1 as an agent needs: a parser of requests without I/O, a server of one thread
// that answers GET, or POST without a body, and closes, and a client with bounds on time and size.
#ifndef WEFT_TOOLS_OBSERVE_HTTP_H_
#define WEFT_TOOLS_OBSERVE_HTTP_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace weft::observe {

inline constexpr size_t kRequestBytesMax = 8192;  // up to the empty line

struct HttpRequest {
  std::string method, path;  // the path without what follows a '?'
  std::string authorization;
};

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

enum class HttpParse { kMore, kBad, kDone };
// Parses all bytes that have come so far.
HttpParse ParseHttpRequest(absl::string_view bytes, HttpRequest* request);

// "127.0.0.1:9400", "[::1]:9400", "host:9400", ":9400" (loopback), "9400" (likewise).
struct HttpAddress {
  std::string host, port;
};
absl::StatusOr<HttpAddress> ParseHttpAddress(absl::string_view text);

struct HttpServerOptions {
  HttpAddress address;
  // Bearer token; empty: none is asked for, which is refused where the address is not loopback.
  std::string token;
  std::vector<std::string> open_paths;  // that need no token: pages without any data
  bool takes_posts = false;             // beside GET; only with a token
  size_t connections_max = 64;
  absl::Duration patience = absl::Seconds(5);  // with one connection
};

class HttpServer {
 public:
  using Handler = std::function<HttpResponse(const HttpRequest&)>;
  // kPermissionDenied: not loopback and no token.
  static absl::StatusOr<HttpServer> Listen(const HttpServerOptions& options);
  HttpServer(HttpServer&& other) noexcept;
  HttpServer& operator=(HttpServer&&) = delete;
  ~HttpServer();

  // Accepts, reads, answers and writes what can be done within `wait`, and returns.
  void Turn(const Handler& handler, absl::Duration wait);
  int port() const { return port_; }
  uint64_t turned_away() const { return turned_away_; }  // bad requests, and those over the limit

 private:
  struct Connection {
    int fd = -1;
    absl::Time until;
    std::string in, out;
    size_t written = 0;
  };
  HttpServer(const HttpServerOptions& options, int fd, int port)
      : options_(options), fd_(fd), port_(port) {}
  void Accept();
  bool IsOpen(const std::string& path) const;
  bool Serve(Connection& connection, const Handler& handler);  // false: it is over

  HttpServerOptions options_;
  int fd_;
  int port_;
  uint64_t turned_away_ = 0;
  std::vector<Connection> connections_;
};

struct HttpCall {
  std::string method = "GET", path = "/", token, body, type = "application/json";
  absl::Duration patience = absl::Seconds(5);
  size_t bytes_max = size_t{64} << 20;
};
// The body that was sent in chunks ("Transfer-Encoding: chunked"); kDataLoss: it is not whole.
absl::StatusOr<std::string> JoinChunks(absl::string_view body);

// The answer's body where its status is 200..299; an error names the address and what came.
// kFailedPrecondition: another status, "... answers with status 503: ...".
absl::StatusOr<std::string> HttpFetch(const HttpAddress& address, const HttpCall& call);

// Takes as long for any two texts of one length.
bool SameSecret(absl::string_view a, absl::string_view b);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_HTTP_H_
