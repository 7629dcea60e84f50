#include "topology/discovery/trace.h"

#include <algorithm>
#include <map>

#include "base/status.h"
#include "topology/ecmp/echo_prober.h"
#include "topology/ecmp/udp_prober.h"

namespace weft::topology {
namespace {

// After which TraceOptions::gives_up; the share is of those that told their way.
constexpr int kSilentFlows = 8;
constexpr double kSilentShare = 0.25;

EchoProberOptions Echo(const TraceOptions& options, bool records_route) {
  EchoProberOptions out;
  out.source = options.source;
  out.target = options.target;
  out.target_port = options.target_port;
  out.records_route = records_route;
  out.timeout = options.timeout;
  out.rounds = options.rounds;
  return out;
}

}  // namespace

absl::StatusOr<Reached> Reach(const TraceOptions& options, absl::Span<const uint16_t> ports,
                              TraceStatistics& statistics) {
  EchoProber prober(Echo(options, false));
  WEFT_ASSIGN_OR_RETURN(std::vector<EchoAnswer> answers, prober.Ask(ports));
  statistics.sent += prober.sent();
  statistics.lost += prober.lost();
  Reached out;
  out.rtt = absl::InfiniteDuration();
  for (const EchoAnswer& answer : answers) {
    if (!answer.heard) continue;
    // Paths of one length; a longer one is a detour of a moment.
    if (!out.heard || answer.routers < out.routers) out.routers = answer.routers;
    out.heard = true;
    out.rtt = std::min(out.rtt, answer.rtt);
  }
  return out;
}

absl::StatusOr<std::string> NameAt(const TraceOptions& options, uint16_t source_port, int position,
                                   TraceStatistics& statistics) {
  UdpProber prober({options.source, options.target, options.target_port, options.timeout});
  for (int i = 0; i < options.rounds; ++i) {
    absl::StatusOr<HopAnswer> answer = prober.Ask(source_port, position);
    if (!answer.ok()) return std::string();  // a port that is in use
    ++statistics.sent;
    std::string name = RouterName(*answer, options.source.v6);
    if (!name.empty()) return name;
    ++statistics.lost;
  }
  return std::string();
}

absl::StatusOr<std::vector<TracedFlow>> TraceFlows(const TraceOptions& options, int routers,
                                                   absl::Span<const uint16_t> ports,
                                                   TraceStatistics& statistics) {
  std::vector<TracedFlow> out;
  if (!options.source.v6) {
    EchoProber prober(Echo(options, true));
    // A few first: where probes with options are dropped, all others would be, each for a while.
    const size_t few = std::min<size_t>(ports.size(), 4);
    WEFT_ASSIGN_OR_RETURN(std::vector<EchoAnswer> answers, prober.Ask(ports.first(few)));
    const bool works = std::any_of(answers.begin(), answers.end(), [&](const EchoAnswer& answer) {
      return static_cast<int>(answer.route.size()) == routers;
    });
    if (works && few < ports.size()) {
      WEFT_ASSIGN_OR_RETURN(std::vector<EchoAnswer> others, prober.Ask(ports.subspan(few)));
      answers.insert(answers.end(), others.begin(), others.end());
    }
    statistics.sent += prober.sent();
    statistics.lost += prober.lost();
    std::map<std::vector<std::string>, int> named;
    for (size_t i = 0; works && i < answers.size(); ++i) {
      if (static_cast<int>(answers[i].route.size()) != routers) continue;
      TracedFlow flow;
      flow.source_port = ports[i];
      for (const IpAddress& address : answers[i].route) flow.recorded.push_back(address.ToString());
      if (named[flow.recorded]++ < options.named_flows) {
        flow.answered.resize(static_cast<size_t>(routers));
        for (int position = 2; position < routers; ++position) {
          WEFT_ASSIGN_OR_RETURN(flow.answered[static_cast<size_t>(position - 1)],
                                NameAt(options, ports[i], position, statistics));
        }
      }
      out.push_back(std::move(flow));
    }
    if (works) return out;
  }
  int silent = 0;
  for (uint16_t port : ports) {
    if (out.empty() && silent == 4) break;  // routers that answer nobody
    if (options.gives_up && silent >= kSilentFlows &&
        silent > kSilentShare * static_cast<double>(out.size())) {
      break;
    }
    TracedFlow flow;
    flow.source_port = port;
    flow.answered.resize(static_cast<size_t>(routers));
    bool any = false;
    // The last tells where the way came from, on switches that answer from there.
    for (int position = 2; position <= routers; ++position) {
      std::string& name = flow.answered[static_cast<size_t>(position - 1)];
      WEFT_ASSIGN_OR_RETURN(name, NameAt(options, port, position, statistics));
      any = any || (!name.empty() && position < routers);
    }
    silent += any ? 0 : 1;
    if (any) out.push_back(std::move(flow));
  }
  return out;
}

}  // namespace weft::topology
