// Learning a hash that nobody publishes: which source ports share a path between two hosts, found
// by asking the network. Two ways to ask, each behind an interface of its own:
//
//   PathProber  as traceroute: packets that die after `ttl` hops, and who says so
//   LoadProber  where switches do not answer: load on some ports raises the round-trip time of
//               those that share a link with them
//
// Answers may be lost or wrong. Every question is asked until one answer leads by `lead`, which
// with a chance e < 1/2 of a wrong answer leaves (e / (1 - e))^lead of a wrong verdict (Wald's
// sequential test).
//
// Hashes of switch silicon are mostly linear over bits (switch_hash.h). Then, with 2^k paths, ports
// of one class differ by elements of a subspace, which some 16 + 2^k known ports determine: all
// others need no probe. FitLinear() finds it, and finds nothing where the hash is not linear
// (Linux').
#ifndef WEFT_TOPOLOGY_ECMP_LEARN_H_
#define WEFT_TOPOLOGY_ECMP_LEARN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace weft::topology {

struct HopAnswer {
  enum class Kind : uint8_t { kSilent, kRouter, kTarget } kind = Kind::kSilent;
  uint64_t router = 0;  // kRouter: any number that names it
  auto operator<=>(const HopAnswer&) const = default;
};

class PathProber {
 public:
  virtual ~PathProber() = default;
  // One packet. An error ends the learning; a lost answer is kSilent.
  virtual absl::StatusOr<HopAnswer> Ask(uint16_t source_port, int ttl) = 0;
};

class LoadProber {
 public:
  virtual ~LoadProber() = default;
  // The round-trip time of one packet while every port of `loaded` carries enough to fill its
  // path's narrowest link and nothing that all paths share. Infinite: lost.
  virtual absl::StatusOr<absl::Duration> RoundTrip(uint16_t source_port,
                                                   absl::Span<const uint16_t> loaded) = 0;
};

struct LearnOptions {
  std::vector<uint16_t> ports;  // to be sorted into classes, in this order
  // Hops to compare. Best those at which paths part: a router that several paths meet in may answer
  // from the interface by which its answer leaves, which its own hash chooses; classes then come
  // out finer than they are, never coarser.
  int ttl_max = 8;
  int lead = 2;                  // LearnByLoad: 4 or more, for round-trip times are noisy
  int tries = 12;                // of one question, after which the answer is unknown
  int64_t probes_max = 100'000;  // after which the rest of the ports stays unknown
};

// Ports of a class have the same bits under the map to cosets of a subspace of GF(2)^16.
class LinearPorts {
 public:
  // The index of the class of any port; none: no port of its coset was known.
  std::optional<size_t> ClassOf(uint16_t port) const;
  int dimensions() const { return static_cast<int>(basis_.size()); }  // of the subspace

 private:
  friend std::optional<LinearPorts> FitLinear(const std::vector<std::vector<uint16_t>>& classes);
  uint16_t Reduce(uint16_t port) const;
  std::vector<uint16_t> basis_;  // reduced, the highest bit first
  std::map<uint16_t, size_t> class_of_;
};

// No value: no such subspace, or too few ports to be sure (a chance below 2^-8 of being wrong).
std::optional<LinearPorts> FitLinear(const std::vector<std::vector<uint16_t>>& classes);

struct LearnedPaths {
  std::vector<std::vector<uint16_t>>
      classes;  // ports that share a path; in the order of their first
  // LearnByTtl: the hops of each class, the first first.
  std::vector<std::vector<HopAnswer>> hops;
  std::vector<uint16_t> unknown;  // no clear answer, or no probes left
  int64_t probes = 0;
  // The chance to have missed one more path, were it as likely as the others.
  double missed = 1;
  std::optional<LinearPorts> linear;
};

// InvalidArgument: no ports, or a number above is out of range. Probes: at most
// ports * ttl_max * tries, and probes_max; hops at which the first 16 ports agree are not asked
// again.
absl::StatusOr<LearnedPaths> LearnByTtl(PathProber& prober, const LearnOptions& options);

// Probes: at most (2 + ports (2 + log2 classes)) tries, and probes_max. FailedPrecondition: load on
// a port does not raise its own round-trip time, so that nothing can be told.
absl::StatusOr<LearnedPaths> LearnByLoad(LoadProber& prober, const LearnOptions& options);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_LEARN_H_
