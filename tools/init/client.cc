#include "tools/init/client.h"

#include <cstring>

#include "collectives/store/protocol/store_protocol.h"

namespace weft::init {

void Expected::Add(absl::string_view value) {
  offsets_.push_back(bytes_.size());
  collectives::AppendValue(bytes_, value);
}

absl::string_view Expected::value(int rank) const {
  size_t offset = offsets_[static_cast<size_t>(rank)];
  uint32_t size = 0;
  std::memcpy(&size, bytes_.data() + offset, sizeof(size));
  return absl::string_view(bytes_).substr(offset + sizeof(size), size);
}

}  // namespace weft::init
