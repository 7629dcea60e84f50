// The client that speaks for each rank of a job, in runs of consecutive ranks: the cost of a client
// does not grow with the number of ranks that it speaks for. Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_MEMBERS_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_MEMBERS_H_

#include <cstdint>
#include <map>
#include <memory>

#include "base/units.h"
#include "collectives/store/protocol/store_hello.h"

namespace weft::collectives {

class StoreMembers {
 public:
  struct Member {
    std::shared_ptr<const StoreHello> hello;
    uint64_t session = 0;  // that named it: its own, or its relay's
  };

  // The most that one Enroll() of this hello takes, mostly.
  static Bytes BytesOf(const StoreHello& hello);

  // Gives the hello's ranks to it, but for those that are a later generation's, or the same
  // generation's by a hello for fewer ranks: a rank's own word is better than its relay's. True: it
  // has taken ranks from an earlier generation.
  bool Enroll(const std::shared_ptr<const StoreHello>& hello, uint64_t session);

  bool empty() const { return runs_.empty(); }
  const Member* Find(int32_t rank) const;  // null: no client has named it
  // Whether each of the ranks [first, first + count) has a member of which test(member) is true.
  template <typename Test>
  bool All(int32_t first, int32_t count, Test test) const {
    int32_t at = first;
    auto run = runs_.upper_bound(first);
    if (run != runs_.begin()) --run;
    for (; at < first + count; ++run) {
      if (run == runs_.end() || run->first > at || run->second.end <= at) return false;
      if (!test(run->second.member)) return false;
      at = run->second.end;
    }
    return true;
  }
  Bytes bytes() const { return bytes_; }  // of memory

 private:
  struct Run {
    int32_t end = 0;
    Member member;
  };
  using Runs = std::map<int32_t, Run>;  // by first rank

  void SplitAt(int32_t rank);
  void Put(int32_t first, Run run);
  Runs::iterator Erase(Runs::iterator run);

  Runs runs_;
  Bytes bytes_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_MEMBERS_H_
