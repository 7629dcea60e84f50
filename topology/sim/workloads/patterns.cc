#include "topology/sim/workloads/patterns.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/status.h"

namespace weft::topology {
namespace {

// Streams of the seed, one a pattern, so that patterns side by side do not draw the same.
enum Stream : uint64_t { kPermutation = 0x7065726d, kIncast, kFullMesh, kBackground };

std::vector<size_t> Indexes(size_t n) {
  std::vector<size_t> indexes(n);
  std::iota(indexes.begin(), indexes.end(), size_t{0});
  return indexes;
}

}  // namespace

void AddPermutation(Workload& workload, absl::Span<const Endpoint> endpoints, Bytes bytes,
                    absl::Duration start, uint64_t seed) {
  WEFT_CHECK(endpoints.size() >= 2, endpoints.size());
  const uint32_t group = workload.AddGroup("permutation");
  Random random(seed, kPermutation);
  std::vector<size_t> cycle = Indexes(endpoints.size());
  random.Shuffle(cycle);
  std::vector<size_t> target(cycle.size());
  for (size_t i = 0; i < cycle.size(); ++i) target[cycle[i]] = cycle[(i + 1) % cycle.size()];
  for (size_t source = 0; source < target.size(); ++source) {
    workload.Add({.source = endpoints[source],
                  .target = endpoints[target[source]],
                  .bytes = bytes,
                  .start = start,
                  .group = group});
  }
}

void AddIncast(Workload& workload, absl::Span<const Endpoint> endpoints, int fan_in, int target,
               bool random_sources, Bytes bytes, absl::Duration start, uint64_t seed) {
  const size_t wanted = static_cast<size_t>(fan_in), to = static_cast<size_t>(target);
  WEFT_CHECK(wanted < endpoints.size() && to < endpoints.size(), fan_in << " to " << target);
  const uint32_t group = workload.AddGroup("incast");
  std::vector<size_t> sources = Indexes(endpoints.size());
  sources.erase(sources.begin() + target);
  if (random_sources) {
    Random random(seed, kIncast);
    random.Shuffle(sources);
  }
  sources.resize(wanted);
  for (size_t source : sources) {
    workload.Add({.source = endpoints[source],
                  .target = endpoints[to],
                  .bytes = bytes,
                  .start = start,
                  .group = group});
  }
}

void AddFullMesh(Workload& workload, absl::Span<const Endpoint> endpoints, FullMeshShape shape,
                 int window, Bytes bytes, absl::Duration start, uint64_t seed) {
  const size_t n = endpoints.size();
  const uint32_t group = workload.AddGroup("all-to-all");
  Random random(seed, kFullMesh);
  const size_t width = shape == FullMeshShape::kParallel ? n : static_cast<size_t>(window);
  WEFT_CHECK(width > 0, window);
  std::vector<size_t> shifts(n - 1);
  std::vector<OperationId> own(n - 1);
  for (size_t source = 0; source < n; ++source) {
    std::iota(shifts.begin(), shifts.end(), size_t{1});
    if (shape == FullMeshShape::kRandom) random.Shuffle(shifts);
    for (size_t k = 0; k < shifts.size(); ++k) {
      const Operation transfer{.source = endpoints[source],
                               .target = endpoints[(source + shifts[k]) % n],
                               .bytes = bytes,
                               .start = start,
                               .group = group};
      own[k] = k < width ? workload.Add(transfer) : workload.Add(transfer, {own[k - width]});
    }
  }
}

double ExponentialDraw(Random& random) {
  for (double whole = 0;; ++whole) {
    const double first = random.Uniform();
    double last = first;
    for (bool odd = true;; odd = !odd) {
      const double next = random.Uniform();
      if (next >= last) {  // the run of falling numbers ends here
        if (odd) return whole + first;
        break;
      }
      last = next;
    }
  }
}

void AddBackground(Workload& workload, absl::Span<const Endpoint> endpoints,
                   const BackgroundTraffic& traffic, uint64_t seed) {
  const size_t n = endpoints.size();
  WEFT_CHECK(n >= 2 && traffic.load > 0 && traffic.bytes > Bytes(0), n);
  const uint32_t group = workload.AddGroup("background");
  Random random(seed, kBackground);
  const absl::Duration gap =
      traffic.bytes / (traffic.rate * (traffic.load * static_cast<double>(n)));
  absl::Duration at = traffic.start;
  while ((at += gap * ExponentialDraw(random)) < traffic.start + traffic.duration) {
    const size_t source = random.Below(n);
    const size_t target = (source + 1 + random.Below(n - 1)) % n;
    Bytes bytes = traffic.bytes;
    if (traffic.exponential) {
      const double drawn = static_cast<double>(bytes.count()) * ExponentialDraw(random);
      bytes = Bytes(std::max<int64_t>(1, static_cast<int64_t>(drawn)));
    }
    workload.Add({.source = endpoints[source],
                  .target = endpoints[target],
                  .bytes = bytes,
                  .start = at,
                  .group = group});
  }
}

}  // namespace weft::topology
