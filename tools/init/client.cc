#include "tools/init/client.h"

#include <cstring>

#include "collectives/store/protocol/store_protocol.h"
#include "tools/init/redis_client.h"
#include "tools/init/torch_client.h"
#include "tools/init/weft_client.h"

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

std::unique_ptr<Client> MakeClient(StoreKind store, const ClientSetup& setup) {
  switch (store) {
    case StoreKind::kWeft:
      return std::make_unique<WeftClient>(setup);
    case StoreKind::kRedis:
      return std::make_unique<RedisClient>(setup);
    case StoreKind::kTorch:
      return std::make_unique<TorchClient>(setup);
  }
  return nullptr;
}

}  // namespace weft::init
