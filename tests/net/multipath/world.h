// A small deterministic network with everything that goes wrong, and the multipath protocol in it:
// one sending and one receiving process, some paths, faults drawn from a seed. Packets cross it as
// bytes, through Write() and Parse().
//
// For a while there are faults: loss up to 10 %, reordering, duplicates, delays, corruption, marks,
// trimming, flapping paths, partitions, paths that hold everything back and then let it go (pause
// storms), loss in one direction only, restarts of either process. Then it heals, and everything
// must end. Checked throughout:
//
//   - a message that was sent ends once at its sender; a posted receive ends once
//   - what ends well at the sender had arrived at the receiver, whole, once, in a receive of its
//     turn
//   - errors happen only where a process restarted or a message was too long
//   - after healing all is delivered, and the connection closes on both sides
#ifndef WEFT_TESTS_NET_MULTIPATH_WORLD_H_
#define WEFT_TESTS_NET_MULTIPATH_WORLD_H_

#include <cstdint>
#include <string>

namespace weft::net::multipath {

struct WorldResult {
  std::string error;  // empty: all went well
  std::string drawn;  // what the seed drew
  int64_t packets = 0, lost = 0, retransmissions = 0, messages = 0, failed = 0, restarts = 0;
  double simulated_seconds = 0;
};

// The same seed does the same on every machine. With `log` every packet is printed.
WorldResult RunWorld(uint64_t seed, bool log = false);

}  // namespace weft::net::multipath

#endif  // WEFT_TESTS_NET_MULTIPATH_WORLD_H_
