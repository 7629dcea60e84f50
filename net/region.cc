#include <utility>

#include "base/status.h"
#include "net/transport.h"

namespace weft::net {

RegionView RegionView::Slice(size_t offset, size_t size) const {
  WEFT_CHECK(offset <= size_ && size <= size_ - offset,
             "offset " << offset << " size " << size << " of a view of " << size_);
  return RegionView(data_ + offset, size, region_);
}

Region& Region::operator=(Region&& other) noexcept {
  if (this == &other) return *this;
  if (deregister_) deregister_();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  deregister_ = std::exchange(other.deregister_, nullptr);
  return *this;
}

Region::~Region() {
  if (deregister_) deregister_();
}

}  // namespace weft::net
