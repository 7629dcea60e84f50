// The slots of a job as a grid, and the orders in which to walk it.
//
// Where a host's ranks are a box of the axes (tensor 8, say), slots are the points of a grid of
// what is left: data 192 x pipeline 8. Walking the grid tile by tile, and laying the slots on the
// hosts in the order of the switch tree, puts each tile under one switch: a tile of data 8 x
// pipeline 8 keeps most of both kinds of traffic below a leaf of 64 hosts.
#ifndef WEFT_TOPOLOGY_ORDER_SLOT_GRID_H_
#define WEFT_TOPOLOGY_ORDER_SLOT_GRID_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "topology/cost/collective_flows.h"
#include "topology/cost/job.h"

namespace weft::topology {

struct GridAxis {
  Axis axis;
  int size;
};

struct SlotGrid {
  std::vector<GridAxis> axes;  // of sizes above 1; the first varies fastest in the slots' numbers
  int slots() const;
};

// How many neighbours on each axis share a host, by Axis. Product: GPUs of a host.
using BlockShape = std::array<int, kAxisCount>;

// The shape of contiguous blocks of `gpus` ranks; none if they are no box.
std::optional<BlockShape> ContiguousShape(const Mesh& mesh, int gpus);
// Every shape whose parts divide the axes.
std::vector<BlockShape> AllShapes(const Mesh& mesh, int gpus);

// Ranks in blocks of a shape; slots and GPUs numbered by the layout's nesting. For the contiguous
// shape the same as RankBlocks::Contiguous.
RankBlocks BlocksOf(const Mesh& mesh, const BlockShape& shape);
SlotGrid GridOf(const Mesh& mesh, const BlockShape& shape);

// Tiles of `tile`[i] points on axis i, walked in `inner` order of axes within a tile, tiles in
// `outer` order; the first axis of each is the fastest.
struct Walk {
  std::vector<int> tile;          // [axis], divides the axis' size
  std::vector<int> inner, outer;  // permutations of the axes

  int TileSlots() const;
  bool operator==(const Walk&) const = default;
};

// Slots in the order of the walk.
std::vector<int32_t> Visit(const SlotGrid& grid, const Walk& walk);
// "tiles of data 8 x pipeline 8, then data, pipeline".
std::string Describe(const SlotGrid& grid, const Walk& walk);

// Whole axes, in every order.
std::vector<Walk> PlainWalks(const SlotGrid& grid);
// Walks that differ in one thing: a tile's next larger or smaller size on one axis, or two axes
// exchanged in an order.
std::vector<Walk> Neighbours(const SlotGrid& grid, const Walk& walk);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_SLOT_GRID_H_
