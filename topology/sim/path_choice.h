// Which of several equally near links a flow takes: the default hash of every simulated switch.
// Both levels call this and nothing else, so that the same flow takes the same path at either
// level.
//
// A flow here is a connection, as with a queue pair of RoCE: all transfers between two endpoints
// with one source port share their path. Every switch hashes with a seed of its own (no
// polarisation). Hashes of real switches are in ../ecmp.
#ifndef WEFT_TOPOLOGY_SIM_PATH_CHOICE_H_
#define WEFT_TOPOLOGY_SIM_PATH_CHOICE_H_

#include <cstddef>
#include <cstdint>

#include "base/ids.h"
#include "base/random.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

// Hash of a connection: mixes its addresses and source port (0: none was chosen) with the run's
// seed.
constexpr uint64_t FlowHash(uint64_t seed, Endpoint source, Endpoint target, uint16_t source_port) {
  auto word = [](int high, int low) {
    return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  };
  uint64_t state = seed;
  uint64_t hash = SplitMix64(state);
  state = hash ^ word(source.host.value(), source.nic);
  hash = SplitMix64(state);
  state = hash ^ word(target.host.value(), target.nic);
  hash = SplitMix64(state);
  state = hash ^ source_port;
  return SplitMix64(state);
}

// The index, below `choices`, of the link that a flow takes at a node.
constexpr size_t ChooseLink(uint64_t flow_hash, NodeId at, size_t choices) {
  if (choices <= 1) return 0;
  uint64_t state = flow_hash ^ (static_cast<uint64_t>(at.value()) + 1) * 0xD1342543DE82EF95ULL;
  // The top 32 bits times the number of choices: uniform to one in 2^32 / choices.
  return static_cast<size_t>((SplitMix64(state) >> 32) * choices >> 32);
}

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_PATH_CHOICE_H_
