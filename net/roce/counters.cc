#include "net/roce/counters.h"

namespace weft::net {
namespace {

constexpr absl::string_view kPathAdvice =
    "packets are lost on the way: look at drops of the switches, PFC on every hop, and cables";
constexpr absl::string_view kCableAdvice = "clean or replace the cable or transceiver of this port";
constexpr absl::string_view kSoftwareAdvice =
    "two programs disagree about memory or sizes: compare their versions and settings";

using C = CounterClass;

constexpr CounterInfo kCounters[] = {
    // mlx5, hw_counters
    {"out_of_sequence", C::kLoss, "packets that came out of order, each answered by a NAK",
     kPathAdvice},
    {"packet_seq_err", C::kLoss, "NAKs for lost packets that the other side sent", kPathAdvice},
    {"local_ack_timeout_err", C::kLoss, "acknowledgements that did not come in time", kPathAdvice},
    {"implied_nak_seq_err", C::kLoss, "acknowledgements that skipped a read or an atomic",
     kPathAdvice},
    {"roce_adp_retrans", C::kLoss, "adaptive retransmissions", kPathAdvice},
    {"roce_adp_retrans_to", C::kLoss, "adaptive retransmissions that timed out", kPathAdvice},
    {"roce_slow_restart", C::kLoss, "slow restarts after a loss", kPathAdvice},
    {"rx_icrc_encapsulated", C::kLink, "packets with a wrong checksum (ICRC)", kCableAdvice},
    {"out_of_buffer", C::kCongestion, "packets dropped for want of a posted receive",
     "the receiver's program is too slow, or posts too few receives"},
    {"rnr_nak_retry_err", C::kCongestion, "\"receiver not ready\" answers without end",
     "the receiver's program posts too few receives; raise rnr_retry"},
    {"np_ecn_marked_roce_packets", C::kCongestion, "packets that a switch marked (ECN)",
     "queues build up: some is normal with DCQCN; much means hashed paths collide (weft-plan)"},
    {"np_cnp_sent", C::kCongestion, "congestion notifications sent",
     "queues build up on the way to this host"},
    {"rp_cnp_handled", C::kCongestion, "congestion notifications that slowed this host down",
     "queues build up on the way from this host"},
    {"rp_cnp_ignored", C::kCongestion, "congestion notifications that were ignored",
     "DCQCN is off at this sender (roce_rp) while receivers notify: turn it on"},
    {"resp_cqe_error", C::kRefused, "requests of others that ended with an error", kSoftwareAdvice},
    {"resp_local_length_error", C::kRefused, "messages longer than the receive they met",
     kSoftwareAdvice},
    {"resp_remote_access_errors", C::kRefused, "accesses of others to memory that is not theirs",
     kSoftwareAdvice},
    {"req_remote_access_errors", C::kRefused, "accesses that another host refused",
     kSoftwareAdvice},
    {"req_remote_invalid_request", C::kRefused, "requests that another host found invalid",
     kSoftwareAdvice},
    {"req_transport_retries_exceeded", C::kLoss, "requests given up after all retries (error 12)",
     "a path was dead longer than timeout and retry_cnt allow: look at the link, raise the "
     "timeout"},
    // InfiniBand's port counters
    {"symbol_error", C::kLink, "symbols with minor errors", kCableAdvice},
    {"link_error_recovery", C::kLink, "times that the link trained anew", kCableAdvice},
    {"link_downed", C::kLink, "times that the link went down", kCableAdvice},
    {"port_rcv_errors", C::kLink, "packets received with an error", kCableAdvice},
    {"local_link_integrity_errors", C::kLink, "local errors beyond the threshold", kCableAdvice},
    {"excessive_buffer_overrun_errors", C::kLink, "overruns of the port's buffer",
     "flow control of the two ends of the cable differs"},
    {"port_xmit_discards", C::kLoss, "packets discarded because the port was down or congested",
     kPathAdvice},
    {"port_xmit_wait", C::kCongestion, "ticks in which there was data to send and no credit",
     "the fabric holds this port back: PFC pauses on RoCE, credits on InfiniBand"},
    // of the port's interface (interface_statistics.h)
    {"pauses_received", C::kCongestion, "pauses (PFC) by which the switch held this port back",
     "queues build up on the way from this host: look for a slow receiver, then at DCQCN"},
    {"pauses_sent", C::kCongestion, "pauses (PFC) by which this port held its switch back",
     "this host takes packets too slowly: look at its PCIe link, memory and NUMA placement"},
    // Soft-RoCE
    {"completer_retry_err", C::kLoss, "requests sent again", kPathAdvice},
    {"rcvd_seq_err", C::kLoss, "NAKs for lost packets that the other side sent", kPathAdvice},
    {"out_of_seq_request", C::kLoss, "requests that came out of order", kPathAdvice},
    {"retry_exceeded_err", C::kLoss, "requests given up after all retries (error 12)",
     "a path was dead longer than timeout and retry_cnt allow: look at the link, raise the "
     "timeout"},
    {"rcvd_rnr_err", C::kCongestion, "\"receiver not ready\" answers",
     "the receiver's program posts too few receives"},
    {"retry_rnr_exceeded_err", C::kCongestion, "\"receiver not ready\" answers without end",
     "the receiver's program posts too few receives; raise rnr_retry"},
    {"send_err", C::kLoss, "packets that the interface did not take",
     "the interface is down, or its queue is too short"},
};

}  // namespace

const char* ToString(CounterClass which) {
  switch (which) {
    case CounterClass::kLoss:
      return "loss";
    case CounterClass::kCongestion:
      return "congestion";
    case CounterClass::kLink:
      return "link";
    case CounterClass::kRefused:
      return "refused";
  }
  return "?";
}

absl::Span<const CounterInfo> KnownCounters() { return kCounters; }

const CounterInfo* FindCounter(absl::string_view name) {
  for (const CounterInfo& counter : kCounters) {
    if (counter.name == name) return &counter;
  }
  return nullptr;
}

std::map<std::string, int64_t> Growth(const std::map<std::string, int64_t>& before,
                                      const std::map<std::string, int64_t>& after) {
  std::map<std::string, int64_t> grown;
  for (const auto& [name, value] : after) {
    auto was = before.find(name);
    if (was != before.end() && value > was->second && FindCounter(name) != nullptr) {
      grown[name] = value - was->second;
    }
  }
  return grown;
}

}  // namespace weft::net
