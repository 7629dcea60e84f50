// Numbers that name things, each a type of its own: a Rank is no NodeId.
#ifndef WEFT_BASE_IDS_H_
#define WEFT_BASE_IDS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace weft {

template <typename Tag>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(int32_t value) : value_(value) {}
  constexpr int32_t value() const { return value_; }
  constexpr size_t index() const { return static_cast<size_t>(value_); }
  constexpr auto operator<=>(const Id&) const = default;

 private:
  int32_t value_ = -1;  // -1: names nothing
};

using Rank = Id<struct RankTag>;    // a process of a job or of a group, from 0
using NodeId = Id<struct NodeTag>;  // a host or a switch of a fabric
using LinkId = Id<struct LinkTag>;  // one direction of a cable
using FlowId = Id<struct FlowTag>;  // packets that share a 5-tuple

}  // namespace weft

template <typename Tag>
struct std::hash<weft::Id<Tag>> {
  size_t operator()(weft::Id<Tag> id) const noexcept { return std::hash<int32_t>()(id.value()); }
};

#endif  // WEFT_BASE_IDS_H_
