#include "collectives/store/protocol/store_exchange.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {

StoreReply EncodeExchanged(const RankSet& ranks, const std::vector<absl::string_view>& values,
                           const std::shared_ptr<StoreBudget>& budget) {
  std::string set = ranks.Encode();
  size_t bytes = sizeof(uint32_t) + set.size();
  for (absl::string_view value : values) bytes += sizeof(uint32_t) + value.size();
  std::string body;
  body.reserve(bytes);
  AppendValue(body, set);
  for (absl::string_view value : values) AppendValue(body, value);
  StoreReply reply;
  reply.values = static_cast<uint32_t>(values.size() + 1);
  reply.body = budget ? ChargedBody(budget, std::move(body))
                      : std::make_shared<const std::string>(std::move(body));
  return reply;
}

absl::StatusOr<std::vector<absl::string_view>> PickExchanged(
    const std::vector<absl::string_view>& reply, int32_t size, const RankSet& wanted) {
  if (reply.empty()) return absl::InternalError("an exchange was answered with nothing");
  absl::StatusOr<RankSet> ranks = RankSet::Decode(reply[0], size);
  if (!ranks.ok()) return absl::InternalError(ranks.status().message());
  std::optional<std::vector<size_t>> places = wanted.PlacesIn(*ranks);
  if (ranks->size() != reply.size() - 1 || !places.has_value()) {
    return absl::InternalError(absl::StrCat("an exchange was answered with ", reply.size() - 1,
                                            " values for ", ranks->size(), " ranks; ",
                                            wanted.size(), " are wanted"));
  }
  std::vector<absl::string_view> values;
  values.reserve(places->size());
  for (size_t place : *places) values.push_back(reply[place + 1]);
  return values;
}

}  // namespace weft::collectives
