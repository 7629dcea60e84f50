#include "net/tcp/source_ports.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/text_lines.h"

namespace weft::net {
namespace {

absl::StatusOr<std::vector<uint16_t>> ParsePorts(absl::Span<const absl::string_view> words) {
  if (words.empty() || words.size() > kLinkSocketsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(words.size(), " ports; a link has 1..", kLinkSocketsMax, " sockets"));
  }
  std::vector<uint16_t> ports;
  for (absl::string_view word : words) {
    uint32_t port = 0;
    if (!absl::SimpleAtoi(word, &port) || port < 1 || port > 65535) {
      return absl::InvalidArgumentError(absl::StrCat("port \"", word, "\" is not in 1..65535"));
    }
    if (std::find(ports.begin(), ports.end(), port) != ports.end()) {
      return absl::InvalidArgumentError(absl::StrCat("port ", port, " is there twice"));
    }
    ports.push_back(static_cast<uint16_t>(port));
  }
  return ports;
}

}  // namespace

absl::StatusOr<SourcePorts> SourcePorts::Parse(absl::string_view text, Rank self,
                                               absl::string_view origin) {
  SourcePorts out;
  std::map<std::pair<int32_t, int32_t>, int> line_of;
  TextLines lines(text, origin);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    auto bad = [&](absl::string_view why) {
      return lines.Error(why, "; a line is RANK PEER PORT [PORT ...]");
    };
    int32_t rank = -1, peer = -1;
    if (words.size() < 2 || !absl::SimpleAtoi(words[0], &rank) ||
        !absl::SimpleAtoi(words[1], &peer) || rank < 0 || peer < 0 || rank == peer) {
      return bad("it does not begin with two different ranks");
    }
    absl::StatusOr<std::vector<uint16_t>> ports = ParsePorts(absl::MakeSpan(words).subspan(2));
    if (!ports.ok()) return bad(ports.status().message());
    auto [known, added] = line_of.try_emplace({rank, peer}, lines.number());
    if (!added) return bad(absl::StrCat("the link is in line ", known->second, " already"));
    if (rank == self.value()) out.ports_[Rank(peer)] = *std::move(ports);
  }
  return out;
}

absl::StatusOr<SourcePorts> SourcePorts::FromFile(const std::string& path, Rank self) {
  if (path.empty()) return SourcePorts();
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), "tcp.source_ports");
  return Parse(*text, self, path);
}

absl::Span<const uint16_t> SourcePorts::For(Rank peer) const {
  auto found = ports_.find(peer);
  if (found == ports_.end()) return {};
  return found->second;
}

}  // namespace weft::net
