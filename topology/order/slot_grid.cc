#include "topology/order/slot_grid.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::topology {

int SlotGrid::slots() const {
  int slots = 1;
  for (const GridAxis& axis : axes) slots *= axis.size;
  return slots;
}

std::optional<BlockShape> ContiguousShape(const Mesh& mesh, int gpus) {
  BlockShape shape{1, 1, 1, 1, 1};
  for (const MeshAxis& axis : mesh.axes()) {
    int size = axis.size;
    int& part = shape[static_cast<size_t>(axis.axis)];
    if (gpus % size == 0) {
      part = size;
    } else if (size % gpus == 0) {
      part = gpus;
    } else {
      return std::nullopt;
    }
    gpus /= part;
    if (gpus == 1) break;
  }
  if (gpus > 1) return std::nullopt;
  return shape;
}

std::vector<BlockShape> AllShapes(const Mesh& mesh, int gpus) {
  std::vector<BlockShape> shapes = {{1, 1, 1, 1, 1}};
  for (size_t axis = 0; axis < kAxisCount; ++axis) {
    std::vector<BlockShape> longer;
    for (const BlockShape& shape : shapes) {
      int used = std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
      for (int part = 1; part <= gpus / used; ++part) {
        if (gpus / used % part != 0 || mesh.Size(static_cast<Axis>(axis)) % part != 0) continue;
        longer.push_back(shape);
        longer.back()[axis] = part;
      }
    }
    shapes = std::move(longer);
  }
  std::erase_if(shapes, [&](const BlockShape& shape) {
    return std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>()) != gpus;
  });
  return shapes;
}

RankBlocks BlocksOf(const Mesh& mesh, const BlockShape& shape) {
  RankBlocks blocks;
  blocks.gpus = std::accumulate(shape.begin(), shape.end(), 1, std::multiplies<>());
  blocks.slots = mesh.ranks() / blocks.gpus;
  blocks.rank_at.assign(static_cast<size_t>(mesh.ranks()), 0);
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    int slot = 0, slot_stride = 1, gpu = 0, gpu_stride = 1;
    for (const MeshAxis& axis : mesh.axes()) {
      int part = shape[static_cast<size_t>(axis.axis)];
      int coordinate = rank / axis.stride % axis.size;
      gpu += coordinate % part * gpu_stride;
      slot += coordinate / part * slot_stride;
      gpu_stride *= part;
      slot_stride *= axis.size / part;
    }
    blocks.slot_of.push_back(slot);
    blocks.gpu_of.push_back(gpu);
    size_t at =
        static_cast<size_t>(slot) * static_cast<size_t>(blocks.gpus) + static_cast<size_t>(gpu);
    blocks.rank_at[at] = rank;
  }
  return blocks;
}

SlotGrid GridOf(const Mesh& mesh, const BlockShape& shape) {
  SlotGrid grid;
  for (const MeshAxis& axis : mesh.axes()) {
    int size = axis.size / shape[static_cast<size_t>(axis.axis)];
    if (size > 1) grid.axes.push_back({axis.axis, size});
  }
  return grid;
}

int Walk::TileSlots() const {
  return std::accumulate(tile.begin(), tile.end(), 1, std::multiplies<>());
}

std::vector<int32_t> Visit(const SlotGrid& grid, const Walk& walk) {
  size_t n = grid.axes.size();
  std::vector<int> stride(n, 1);
  for (size_t i = 1; i < n; ++i) stride[i] = stride[i - 1] * grid.axes[i - 1].size;
  // Digits of the walk, fastest first: how often, and by how many slots each goes on.
  std::vector<std::pair<int, int>> digits;
  for (int axis : walk.inner) {
    auto i = static_cast<size_t>(axis);
    digits.emplace_back(walk.tile[i], stride[i]);
  }
  for (int axis : walk.outer) {
    auto i = static_cast<size_t>(axis);
    digits.emplace_back(grid.axes[i].size / walk.tile[i], stride[i] * walk.tile[i]);
  }
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(grid.slots()));
  for (int position = 0; position < grid.slots(); ++position) {
    int rest = position, slot = 0;
    for (auto [count, step] : digits) {
      slot += rest % count * step;
      rest /= count;
    }
    order.push_back(slot);
  }
  return order;
}

std::string Describe(const SlotGrid& grid, const Walk& walk) {
  std::vector<std::string> inside, outside;
  for (int axis : walk.inner) {
    auto i = static_cast<size_t>(axis);
    if (walk.tile[i] > 1) {
      inside.push_back(absl::StrCat(ToString(grid.axes[i].axis), " ", walk.tile[i]));
    }
  }
  for (int axis : walk.outer) {
    auto i = static_cast<size_t>(axis);
    int left = grid.axes[i].size / walk.tile[i];
    if (left > 1) outside.push_back(absl::StrCat(ToString(grid.axes[i].axis), " ", left));
  }
  if (inside.empty() || outside.empty()) {
    std::vector<std::string>& all = inside.empty() ? outside : inside;
    return absl::StrCat("slots in the order of ", absl::StrJoin(all, ", "), ", fastest first");
  }
  return absl::StrCat("tiles of ", absl::StrJoin(inside, " x "), ", in the order of ",
                      absl::StrJoin(outside, ", "));
}

std::vector<Walk> PlainWalks(const SlotGrid& grid) {
  std::vector<Walk> walks;
  std::vector<int> order(grid.axes.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    Walk walk;
    for (const GridAxis& axis : grid.axes) walk.tile.push_back(axis.size);
    walk.inner = walk.outer = order;
    walks.push_back(walk);
  } while (std::next_permutation(order.begin(), order.end()));
  return walks;
}

std::vector<Walk> Neighbours(const SlotGrid& grid, const Walk& walk) {
  std::vector<Walk> out;
  for (size_t i = 0; i < grid.axes.size(); ++i) {
    int size = grid.axes[i].size;
    for (int step : {-1, 1}) {
      int part = walk.tile[i] + step;
      while (part >= 1 && part <= size && size % part != 0) part += step;
      if (part < 1 || part > size) continue;
      out.push_back(walk);
      out.back().tile[i] = part;
    }
    for (size_t j = i + 1; j < grid.axes.size(); ++j) {
      out.push_back(walk);
      std::swap(out.back().inner[i], out.back().inner[j]);
      out.push_back(walk);
      std::swap(out.back().outer[i], out.back().outer[j]);
    }
  }
  return out;
}

}  // namespace weft::topology
