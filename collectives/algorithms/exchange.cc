#include "collectives/algorithms/exchange.h"

#include <vector>

#include "collectives/algorithms/parts.h"

namespace weft::collectives {

RankSchedule ExchangeAll(const CollectiveSpec& spec, int at_once) {
  const int n = spec.size;
  const bool uneven = spec.kind == CollectiveKind::kAllToAllV;
  auto from = [&](int peer) {
    const uint64_t r = static_cast<uint64_t>(peer);
    return uneven ? Stretch{spec.input_offsets[r], spec.input_counts[r]}
                  : Stretch{r * spec.count, spec.count};
  };
  auto to = [&](int peer) {
    const uint64_t r = static_cast<uint64_t>(peer);
    return uneven ? Stretch{spec.output_offsets[r], spec.output_counts[r]}
                  : Stretch{r * spec.count, spec.count};
  };
  // Two ranks may disagree about a count; an empty message lets them find out.
  ScheduleBuilder builder(/*empty_messages=*/uneven);
  // In place, parts overlay those that they replace: the input goes to scratch first.
  Place source = Input(0);
  uint32_t saved = kNone;
  if (spec.in_place) {
    source = builder.Scratch(InputLength(spec));
    saved = builder.Copy(source, Input(0), InputLength(spec));
  }
  std::vector<uint32_t> sent(static_cast<size_t>(n), kNone), received = sent;  // by exchange
  for (int d = 1; d < n; ++d) {
    const int peer = Around(spec.rank, -d, n);
    const uint32_t before = d > at_once ? sent[d - at_once] : kNone;
    sent[d] = builder.Send(peer, source + from(peer).offset, from(peer).length, {saved, before});
    if (d > at_once) builder.AlsoAfter(received[d - at_once]);
    const int giver = Around(spec.rank, d, n);
    received[d] = builder.Receive(giver, Output(to(giver).offset), to(giver).length, {saved});
  }
  const Stretch own = from(spec.rank), kept = to(spec.rank);
  if (!spec.in_place || own.offset != kept.offset) {
    builder.Copy(Output(kept.offset), source + own.offset, own.length, {saved});
  }
  return std::move(builder).Finish();
}

}  // namespace weft::collectives
