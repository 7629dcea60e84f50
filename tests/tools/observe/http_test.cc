#include "tools/observe/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/fuzz_budget.h"

namespace weft::observe {
namespace {

using testing::HasSubstr;

TEST(ParseHttpRequest, ReadsAGet) {
  HttpRequest request;
  EXPECT_EQ(
      ParseHttpRequest("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nauthorization:  Bearer t \r\n\r\n",
                       &request),
      HttpParse::kDone);
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.path, "/metrics");
  EXPECT_EQ(request.authorization, "Bearer t");
}

TEST(ParseHttpRequest, WaitsForTheEndAndHasABound) {
  HttpRequest request;
  EXPECT_EQ(ParseHttpRequest("", &request), HttpParse::kMore);
  EXPECT_EQ(ParseHttpRequest("GET / HTTP/1.1\r\nHost: a\r\n", &request), HttpParse::kMore);
  EXPECT_EQ(ParseHttpRequest(std::string(kRequestBytesMax, 'a'), &request), HttpParse::kBad);
}

TEST(ParseHttpRequest, RefusesWhatIsNone) {
  HttpRequest request;
  for (const char* text : {"\r\n\r\n", "GET /\r\n\r\n", "GET metrics HTTP/1.1\r\n\r\n",
                           "GET / FTP/1\r\n\r\n", "G\x01T / HTTP/1.1\r\n\r\n",
                           "GET /\x7f HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
                           "GET / HTTP/1.1\r\n: x\r\n\r\n", "GET / / HTTP/1.1\r\n\r\n"}) {
    EXPECT_EQ(ParseHttpRequest(text, &request), HttpParse::kBad) << text;
  }
}

// Bytes of any kind, and requests with a few of them changed, cut or doubled.
TEST(ParseHttpRequest, SurvivesAnyBytes) {
  const std::string good =
      "GET /ring/job-0-123.weft HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer abc\r\n\r\n";
  FuzzBudget budget(20000);
  while (const auto seed = budget.Next()) {
    Random random(*seed);
    std::string text = random.Below(4) == 0 ? std::string(random.Below(300), ' ') : good;
    for (uint64_t i = random.Below(8); i > 0 && !text.empty(); --i) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    if (random.Below(3) == 0) text.resize(random.Below(text.size() + 1));
    if (random.Below(5) == 0) text += text;
    HttpRequest request;
    const HttpParse parsed = ParseHttpRequest(text, &request);
    if (parsed != HttpParse::kDone) continue;
    ASSERT_FALSE(request.path.empty()) << budget.Repeat();
    ASSERT_EQ(request.path[0], '/') << budget.Repeat();
    ASSERT_LE(request.path.size(), kRequestBytesMax) << budget.Repeat();
  }
  budget.Report();
}

TEST(ParseHttpAddress, TakesPortsAndHosts) {
  EXPECT_EQ(ParseHttpAddress("9400")->host, "127.0.0.1");
  EXPECT_EQ(ParseHttpAddress(":9400")->port, "9400");
  EXPECT_EQ(ParseHttpAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseHttpAddress("http://10.0.0.1:80/")->host, "10.0.0.1");
  for (const char* text : {"", "host", "host:", "host:99999", "host:x"}) {
    EXPECT_FALSE(ParseHttpAddress(text).ok()) << text;
  }
}

class Server {
 public:
  explicit Server(const std::string& token = "") {
    HttpServerOptions options;
    options.address = {"127.0.0.1", "0"};
    options.token = token;
    auto listening = HttpServer::Listen(options);
    EXPECT_TRUE(listening.ok()) << listening.status();
    server_.emplace(*std::move(listening));
    thread_ = std::thread([this] {
      while (!stop_.load()) {
        server_->Turn(
            [](const HttpRequest& request) {
              return HttpResponse{200, "text/plain", absl::StrCat("you asked for ", request.path)};
            },
            absl::Milliseconds(20));
      }
    });
  }
  ~Server() {
    stop_.store(true);
    thread_.join();
  }
  absl::StatusOr<std::string> Get(const std::string& path, const std::string& token = "",
                                  const std::string& method = "GET") {
    HttpCall call{.method = method, .path = path, .token = token};
    return HttpFetch({"127.0.0.1", absl::StrCat(server_->port())}, call);
  }

 private:
  std::optional<HttpServer> server_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(HttpServer, AnswersAndWantsItsToken) {
  Server open;
  EXPECT_EQ(*open.Get("/a"), "you asked for /a");
  EXPECT_THAT(std::string(open.Get("/a", "", "PUT").status().message()), HasSubstr("status 405"));
  Server guarded("0123456789abcdef");
  EXPECT_THAT(std::string(guarded.Get("/a").status().message()), HasSubstr("status 401"));
  EXPECT_THAT(std::string(guarded.Get("/a", "0123456789abcdeX").status().message()),
              HasSubstr("status 401"));
  EXPECT_TRUE(guarded.Get("/a", "0123456789abcdef").ok());
}

TEST(HttpServer, NeedsATokenWhereOthersReachIt) {
  HttpServerOptions options;
  for (const char* host : {"0.0.0.0", "::", "::ffff:0.0.0.0", "192.0.2.1"}) {
    options.address = {host, "0"};
    const absl::Status status = HttpServer::Listen(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << host;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--token-file"));
  }
  // Not every host has IPv6.
  for (const char* host : {"127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"}) {
    options.address = {host, "0"};
    EXPECT_NE(HttpServer::Listen(options).status().code(), absl::StatusCode::kPermissionDenied)
        << host;
  }
}

// As weft-executor serves its records: to drivers of either family.
TEST(HttpServer, OfEveryAddressIsReachedByBothFamilies) {
  HttpServerOptions options;
  options.token = "0123456789abcdef";
  options.address = {"::", "0"};
  auto listening = HttpServer::Listen(options);
  if (!listening.ok()) GTEST_SKIP() << "this host has no IPv6: " << listening.status();
  HttpServer server = *std::move(listening);
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop.load()) {
      server.Turn([](const HttpRequest&) { return HttpResponse{}; }, absl::Milliseconds(20));
    }
  });
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto said = HttpFetch({host, absl::StrCat(server.port())}, {.token = options.token});
    EXPECT_TRUE(said.ok()) << said.status();
  }
  stop.store(true);
  thread.join();
}

TEST(JoinChunks, JoinsWholeBodiesAndRefusesOthers) {
  const std::string whole = "4\r\nWiki\r\nA;name=x\r\npedia in\r\n\r\n0\r\n\r\n";
  EXPECT_EQ(*JoinChunks(whole), "Wikipedia in\r\n");
  EXPECT_EQ(*JoinChunks("0\r\n\r\n"), "");
  for (size_t cut = 0; cut < whole.size() - 4; ++cut) {
    EXPECT_FALSE(JoinChunks(whole.substr(0, cut)).ok()) << cut;
  }
  for (const char* text :
       {"x\r\n", "2\r\nabcd0\r\n\r\n", "-1\r\nab\r\n", "ffffffffffffffff\r\nab\r\n0\r\n\r\n"}) {
    EXPECT_FALSE(JoinChunks(text).ok()) << text;
  }
  FuzzBudget budget(20000);
  while (const auto seed = budget.Next()) {
    Random random(*seed);
    std::string text = whole;
    for (uint64_t i = 1 + random.Below(4); i > 0; --i) {
      text[random.Below(text.size())] = static_cast<char>(random.Below(256));
    }
    const auto joined = JoinChunks(text);
    EXPECT_TRUE(!joined.ok() || joined->size() <= text.size());
  }
}

TEST(HttpFetch, NamesWhoDoesNotAnswer) {
  const absl::Status status = HttpFetch({"127.0.0.1", "1"}, {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(std::string(HttpFetch({"::1", "1"}, {}).status().message()), HasSubstr("[::1]:1"));
}

}  // namespace
}  // namespace weft::observe
