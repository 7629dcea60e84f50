// What the ranks of a job tell each other of switches that do not carry their packets. Every rank
// keeps one set of reports and passes on what is new to it; of two reports about the same, the one
// with the higher stamp counts. So all who have heard the same know the same, in whatever order it
// came. As text, a line each, SOURCE and TARGET being first switches:
//
//   dropping spine0 leaf3 leaf2 7   nothing from leaf3 over spine0 to leaf2 is answered
//   left spine0 leaf1 - 9           leaf1 hashes over its other next hops: spine0 is none any more
//   good spine0 leaf3 leaf2 12      neither, any more
//
// The number is the stamp: one more than the highest that its author knew (Lamport's clock).
#ifndef WEFT_TOPOLOGY_PLAN_PATH_REPORTS_H_
#define WEFT_TOPOLOGY_PLAN_PATH_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::topology {

// Not thread-safe.
class PathReports {
 public:
  enum class State : uint8_t { kDropping, kLeft, kGood };
  struct Subject {
    std::string over;  // a switch
    std::string source, target;
    auto operator<=>(const Subject&) const = default;
  };
  static constexpr size_t kMost = 256;             // the oldest are forgotten
  static constexpr size_t kTextBytesMax = 32'768;  // longer ones are refused
  static constexpr size_t kNameBytesMax = 60;      // of a switch; no reports about longer ones

  // What this process has seen. False: it is no news.
  bool Report(const Subject& subject, State state);
  // Packets pass this switch again: withdraws each report that it drops them.
  bool Passes(const std::string& over);
  // True: something is new. InvalidArgument: it is no text of reports; nothing has changed.
  absl::StatusOr<bool> Merge(absl::string_view text);
  std::string ToText() const;
  // What is reported as wrong, for people: "left spine0 leaf1, dropping spine0 leaf3 leaf2 and
  // 2 more"; "": there are none.
  std::string Summary() const;

  // Two pairs of switches with nothing in common report that it drops packets, or two switches have
  // left it: so it is the switch, and not one of its links.
  bool IsLost(const std::string& over) const;
  bool HasLeft(const std::string& over, const std::string& source) const;
  // Switches that flows from `source` should avoid, the one with most reports first.
  std::vector<std::string> LostFrom(const std::string& source) const;

 private:
  struct Entry {
    State state = State::kGood;
    uint64_t stamp = 0;
  };
  void Forget();
  // With the next stamp; false: there is none that others take.
  bool Change(const Subject& subject, State state);
  int Count(const std::string& over) const;

  std::map<Subject, Entry> entries_;
  uint64_t newest_ = 0;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PLAN_PATH_REPORTS_H_
