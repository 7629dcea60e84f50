#include "topology/ecmp/switch_hash.h"

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr std::array<std::pair<HashFunction, absl::string_view>, 9> kNames = {{
    {HashFunction::kLinux, "linux"},
    {HashFunction::kCrc16Ccitt, "crc16-ccitt"},
    {HashFunction::kCrc16Arc, "crc16-arc"},
    {HashFunction::kCrc32, "crc32"},
    {HashFunction::kCrc32c, "crc32c"},
    {HashFunction::kXor16, "xor16"},
    {HashFunction::kMix, "mix"},
    {HashFunction::kLinear, "linear"},
    {HashFunction::kTable, "table"},
}};

// Tables of one byte a step, for the most significant bit first and last.
constexpr std::array<uint32_t, 256> ReflectedTable(uint32_t polynomial) {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? polynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> ForwardTable16(uint32_t polynomial) {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte << 8;
    for (int bit = 0; bit < 8; ++bit) value = value << 1 ^ (value & 0x8000 ? polynomial : 0);
    table[byte] = value & 0xFFFF;
  }
  return table;
}

constexpr auto kCrc32Table = ReflectedTable(0xEDB88320);
constexpr auto kCrc32cTable = ReflectedTable(0x82F63B78);
constexpr auto kArcTable = ReflectedTable(0xA001);
constexpr auto kCcittTable = ForwardTable16(0x1021);

uint32_t Reflected(const std::array<uint32_t, 256>& table, uint32_t state,
                   absl::Span<const uint8_t> data) {
  for (uint8_t byte : data) state = state >> 8 ^ table[(state ^ byte) & 0xFF];
  return state;
}

uint32_t Ccitt(uint32_t state, absl::Span<const uint8_t> data) {
  for (uint8_t byte : data) {
    state = (state << 8 ^ kCcittTable[(state >> 8 ^ byte) & 0xFF]) & 0xFFFF;
  }
  return state;
}

uint32_t Xor16(uint32_t state, absl::Span<const uint8_t> data) {
  for (size_t i = 0; i < data.size(); ++i) {
    state ^= static_cast<uint32_t>(data[i]) << (i % 2 == 0 ? 8 : 0);
  }
  return state & 0xFFFF;
}

uint32_t Mix(uint64_t seed, absl::Span<const uint8_t> data) {
  uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (uint8_t byte : data) {
    state ^= byte;
    state = SplitMix64(state);
  }
  return static_cast<uint32_t>(state >> 32);
}

// Fields that are not hashed are left out as zero, so that positions stay.
struct Header {
  std::array<uint8_t, 40> bytes{};
  size_t size = 0;
  void Add(const uint8_t* data, size_t count, bool take) {
    if (take) std::memcpy(bytes.data() + size, data, count);
    size += count;
  }
  void Add16(uint16_t value, bool take) {
    std::array<uint8_t, 2> data = {static_cast<uint8_t>(value >> 8), static_cast<uint8_t>(value)};
    Add(data.data(), 2, take);
  }
};

Header Serialise(const FiveTuple& tuple, uint32_t fields) {
  Header header;
  header.Add(tuple.source.bytes.data(), tuple.source.size(), fields & kHashSourceAddress);
  header.Add(tuple.target.bytes.data(), tuple.target.size(), fields & kHashTargetAddress);
  header.Add16(tuple.source_port, fields & kHashSourcePort);
  header.Add16(tuple.target_port, fields & kHashTargetPort);
  header.Add16(tuple.protocol, fields & kHashProtocol);
  if (tuple.source.v6) {
    header.Add16(static_cast<uint16_t>(tuple.flow_label >> 16), fields & kHashFlowLabel);
    header.Add16(static_cast<uint16_t>(tuple.flow_label), fields & kHashFlowLabel);
  }
  return header;
}

// Buckets of a member: the difference of rounded cumulative shares.
uint32_t Share(uint32_t buckets, size_t members, size_t index) {
  auto end = [&](uint64_t before) { return (2 * buckets * before + members) / (2 * members); };
  return static_cast<uint32_t>(end(index + 1) - end(index));
}

int Width(HashFunction function) {
  switch (function) {
    case HashFunction::kLinux:
      return 31;
    case HashFunction::kCrc16Ccitt:
    case HashFunction::kCrc16Arc:
    case HashFunction::kXor16:
      return 16;
    case HashFunction::kCrc32:
    case HashFunction::kCrc32c:
    case HashFunction::kMix:
    case HashFunction::kLinear:
    case HashFunction::kTable:
      return 32;
  }
  return 32;
}

}  // namespace

absl::StatusOr<SwitchHash> SwitchHash::Create(const SwitchHashOptions& options) {
  auto bad = [](absl::string_view what, int64_t value, absl::string_view right) {
    return absl::InvalidArgumentError(
        absl::StrCat("switch hash: ", what, " ", value, " is not ", right));
  };
  SwitchHash out(options);
  if (options.offset < 0 || options.offset >= out.width_) {
    return bad("offset", options.offset, absl::StrCat("in 0..", out.width_ - 1));
  }
  if (options.buckets < 1 || options.buckets > 65536) {
    return bad("buckets", options.buckets, "in 1..65536");
  }
  constexpr uint32_t kKnown = kHashFiveTuple | kHashFlowLabel;
  if (options.fields == 0 || (options.fields & ~kKnown) != 0) {
    return bad("fields", options.fields, absl::StrFormat("a choice of the bits of 0x%x", kKnown));
  }
  const bool lacks = (options.function == HashFunction::kLinear && options.linear == nullptr) ||
                     (options.function == HashFunction::kTable && options.table == nullptr);
  if (lacks) return absl::InvalidArgumentError("switch hash: nothing was learned of it");
  if (options.function == HashFunction::kLinux) {
    LinuxHashOptions linux_options{options.linux_policy, options.fields, options.seed, true};
    WEFT_ASSIGN_OR_RETURN(LinuxHash hash, LinuxHash::Create(linux_options));
    out.linux_ = hash;
  }
  return out;
}

SwitchHash::SwitchHash(const SwitchHashOptions& options)
    : options_(options), width_(Width(options.function)) {}

uint32_t SwitchHash::Hash(const FiveTuple& tuple) const {
  if (linux_) return linux_->Hash(tuple);
  Header header = Serialise(tuple, options_.fields);
  absl::Span<const uint8_t> data(header.bytes.data(), header.size);
  uint32_t hash = 0;
  switch (options_.function) {
    case HashFunction::kLinux:
      break;
    case HashFunction::kCrc16Ccitt:
      hash = Ccitt(options_.seed & 0xFFFF, data);
      break;
    case HashFunction::kCrc16Arc:
      hash = Reflected(kArcTable, options_.seed & 0xFFFF, data);
      break;
    case HashFunction::kCrc32:
      hash = ~Reflected(kCrc32Table, ~options_.seed, data);
      break;
    case HashFunction::kCrc32c:
      hash = ~Reflected(kCrc32cTable, ~options_.seed, data);
      break;
    case HashFunction::kXor16:
      hash = Xor16(options_.seed & 0xFFFF, data);
      break;
    case HashFunction::kMix:
    case HashFunction::kLinear:  // what it does not know
    case HashFunction::kTable:
      hash = Mix(options_.seed, data);
      break;
  }
  if (options_.offset == 0) return hash;
  uint64_t mask = (uint64_t{1} << width_) - 1;
  return static_cast<uint32_t>(
      (hash >> options_.offset | static_cast<uint64_t>(hash) << (width_ - options_.offset)) & mask);
}

size_t SwitchHash::Pick(uint32_t hash, size_t count) const {
  if (options_.select == HashSelect::kModulo) return hash % count;
  return SelectByThreshold(width_ == 32 ? hash >> 1 : hash << (31 - width_), count);
}

std::optional<uint32_t> SwitchHash::Learned(const FiveTuple& tuple, size_t count) const {
  if (options_.function == HashFunction::kTable) {
    return options_.table->members() == count ? options_.table->MemberOf(tuple) : std::nullopt;
  }
  if (options_.function == HashFunction::kLinear) {
    const bool fits = size_t{1} << options_.linear->index_bits() == count;
    return fits ? options_.linear->IndexOf(tuple) : std::nullopt;
  }
  return std::nullopt;
}

bool SwitchHash::Knows(const FiveTuple& tuple, size_t count) const {
  return count == 1 || KnowsAll() || Learned(tuple, count).has_value();
}

size_t SwitchHash::Select(const FiveTuple& tuple, size_t count) const {
  WEFT_CHECK(count > 0, "no next hop");
  if (count == 1) return 0;
  if (!KnowsAll()) {
    if (const std::optional<uint32_t> index = Learned(tuple, count)) return *index;
  }
  uint32_t hash = Hash(tuple);
  if (options_.select != HashSelect::kResilient) return Pick(hash, count);
  uint32_t bucket = hash % options_.buckets, begin = 0;
  size_t owner = count - 1;
  while (bucket >= (begin += Share(options_.buckets, count, owner))) --owner;
  return owner;
}

size_t SwitchHash::SelectAlive(const FiveTuple& tuple, absl::Span<const bool> alive) const {
  if (options_.select == HashSelect::kResilient) {
    return ResilientOwner(Hash(tuple) % options_.buckets, options_.buckets, alive);
  }
  size_t count = 0;
  for (bool member : alive) count += member ? 1 : 0;
  size_t left = Select(tuple, count);
  for (size_t i = 0; i < alive.size(); ++i) {
    if (alive[i] && left-- == 0) return i;
  }
  WEFT_CHECK(false, "of " << alive.size() << " members " << count << " are alive");
}

bool SwitchHash::linear() const {
  return options_.function != HashFunction::kLinux && options_.function != HashFunction::kMix &&
         KnowsAll();
}

absl::string_view ToString(HashFunction function) {
  for (const auto& [value, name] : kNames) {
    if (value == function) return name;
  }
  return "?";
}

absl::StatusOr<HashFunction> ParseHashFunction(absl::string_view text) {
  std::string all;
  for (const auto& [value, name] : kNames) {
    if (name == text) return value;
    absl::StrAppend(&all, all.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no hash function of a switch; there are ", all));
}

SwitchHashOptions PerTierHash(int tier, uint32_t seed) {
  constexpr std::array<HashFunction, 3> kByTier = {HashFunction::kCrc32, HashFunction::kCrc16Ccitt,
                                                   HashFunction::kCrc32c};
  SwitchHashOptions options;
  auto step = static_cast<size_t>(tier < 0 ? 0 : tier);
  options.function = kByTier[step % kByTier.size()];
  options.offset = static_cast<int>(step * 5 % 16);
  options.seed = seed;
  return options;
}

size_t ResilientOwner(uint32_t bucket, uint32_t buckets, absl::Span<const bool> alive) {
  size_t members = alive.size(), alive_count = 0, owner = members;
  uint32_t begin = 0, orphan = 0;  // `orphan`: buckets of the failed that come before this one
  for (size_t i = members; i-- > 0;) {
    alive_count += alive[i] ? 1 : 0;
    uint32_t size = Share(buckets, members, i);
    if (bucket >= begin && bucket - begin < size) {
      if (alive[i]) return i;
      owner = i;
      orphan += bucket - begin;
    } else if (owner == members && !alive[i]) {
      orphan += size;
    }
    begin += size;
  }
  WEFT_CHECK(alive_count > 0, "of " << members << " members none is alive");
  size_t rank = alive_count, last = 0;
  for (size_t i = members; i-- > 0;) {
    if (!alive[i]) continue;
    uint32_t has = Share(buckets, members, i), wants = Share(buckets, alive_count, --rank);
    uint32_t takes = wants > has ? wants - has : 0;
    if (orphan < takes) return i;
    orphan -= takes;
    last = i;
  }
  return last;
}

}  // namespace weft::topology
