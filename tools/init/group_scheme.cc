#include "tools/init/group_scheme.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "collectives/rendezvous/fast_init.h"

namespace weft::init {

int64_t GroupScheme::Groups(const collectives::Mesh& mesh) {
  int64_t groups = 0;
  for (size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    groups += mesh.GroupsOf(static_cast<int>(axis));
  }
  return groups;
}

int64_t GroupScheme::Messages(const collectives::Mesh& mesh, StoreKind store) {
  bool torch = store == StoreKind::kTorch;
  int64_t set = torch ? 1 : 2;
  int64_t get = torch ? 4 : 2;
  int64_t messages = 0;
  for (size_t axis = 0; axis < mesh.axes().size(); ++axis) {
    int64_t members = mesh.axes()[axis].size;
    int64_t rendezvous = set + (members - 1) * get;
    int64_t barrier = 6 * int64_t{mesh.ranks()} + set;
    messages += mesh.GroupsOf(static_cast<int>(axis)) * (rendezvous + barrier);
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
  collectives::Mesh::Group own = mesh_.GroupOf(rank_, axis_);
  bool member = own.index == index_;
  if (++index_ == mesh_.GroupsOf(axis_)) {
    index_ = 0;
    ++axis_;
  }
  if (!member) return Meet();
  if (own.position == 0) {
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
