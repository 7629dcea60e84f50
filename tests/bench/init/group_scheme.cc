#include "tests/bench/init/group_scheme.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/rendezvous/fast_init.h"

namespace weft::init {

int64_t GroupScheme::Groups(const topology::Mesh& mesh) {
  int64_t groups = 0;
  for (const topology::MeshAxis& one : mesh.axes()) groups += mesh.GroupCount({one.axis});
  return groups;
}

int64_t GroupScheme::Messages(const topology::Mesh& mesh, const MeasuredStore& store) {
  const auto [set, get] = store.messages();
  int64_t messages = 0;
  for (const topology::MeshAxis& one : mesh.axes()) {
    int64_t members = one.size;
    int64_t rendezvous = set + (members - 1) * get;
    int64_t barrier = 6 * int64_t{mesh.ranks()} + set;
    messages += mesh.GroupCount({one.axis}) * (rendezvous + barrier);
  }
  return messages;
}

void GroupScheme::Run(std::function<void(const absl::Status&)> done) {
  done_ = std::move(done);
  Next();
}

bool GroupScheme::Failed(const absl::Status& status) {
  if (status.ok()) return false;
  done_(status);
  return true;
}

void GroupScheme::Next() {
  if (axis_ == static_cast<int>(mesh_.axes().size())) return done_(absl::OkStatus());
  key_ = absl::StrCat("group/", axis_, "/", index_);
  const topology::AxisSet axes = {mesh_.axes()[static_cast<size_t>(axis_)].axis};
  const topology::JobRank rank(rank_);
  bool member = mesh_.GroupIndexOf(rank, axes) == index_;
  if (++index_ == mesh_.GroupCount(axes)) {
    index_ = 0;
    ++axis_;
  }
  if (!member) return Meet();
  if (mesh_.PositionIn(rank, axes) == 0) {
    client_.Post(key_, std::string(collectives::kUniqueIdBytes, 'i'));
    return Meet();
  }
  client_.Get(key_, [this](const absl::Status& status, int64_t) {
    if (!Failed(status)) Meet();
  });
}

void GroupScheme::Meet() {
  std::string counter = absl::StrCat(key_, "/count");
  std::string last = absl::StrCat(key_, "/last");
  client_.Add(counter, 1, [=, this](const absl::Status& added, int64_t count) {
    if (Failed(added)) return;
    if (count == mesh_.ranks()) client_.Post(last, "1");
    client_.Add(counter, 0, [=, this](const absl::Status& looked, int64_t) {
      if (Failed(looked)) return;
      client_.Wait(last, [this](const absl::Status& status, int64_t) {
        if (!Failed(status)) Next();
      });
    });
  });
}

}  // namespace weft::init
