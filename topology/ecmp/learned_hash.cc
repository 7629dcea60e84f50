#include "topology/ecmp/learned_hash.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr uint32_t kMembersMost = 4096;

absl::Status Bad(absl::string_view word, absl::string_view right) {
  return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is wrong; right is ", right));
}

// The position of the highest bit that is set; -1: none is.
int Highest(const TupleBits& bits) {
  for (size_t i = bits.size(); i-- > 0;) {
    if (bits[i] != 0) return static_cast<int>(64 * i) + std::bit_width(bits[i]) - 1;
  }
  return -1;
}

bool Has(const TupleBits& bits, int position) {
  const auto at = static_cast<size_t>(position);
  return (bits[at / 64] >> (at % 64) & 1) != 0;
}

void Add(TupleBits& to, const TupleBits& bits) {
  for (size_t i = 0; i < to.size(); ++i) to[i] ^= bits[i];
}

// "10.1.0.1>10.1.1.1>NUMBER>..." with `count` numbers.
absl::Status TakeEnds(absl::string_view text, FiveTuple& tuple, absl::Span<uint32_t> numbers) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, '>');
  bool good = words.size() == 2 + numbers.size();
  for (size_t i = 0; good && i < numbers.size(); ++i) {
    const uint32_t most = i + 1 < numbers.size() ? UINT16_MAX : UINT8_MAX;  // ports; the protocol
    good = absl::SimpleAtoi(words[2 + i], &numbers[i]) && numbers[i] <= most;
  }
  if (!good) return Bad(text, "10.1.0.1>10.1.1.1 and numbers of ports and of the protocol");
  WEFT_ASSIGN_OR_RETURN(tuple.source, IpAddress::Parse(std::string(words[0])));
  WEFT_ASSIGN_OR_RETURN(tuple.target, IpAddress::Parse(std::string(words[1])));
  if (tuple.source.v6 != tuple.target.v6) return Bad(text, "two addresses of one family");
  return absl::OkStatus();
}

}  // namespace

HashTable::Key HashTable::KeyOf(const FiveTuple& tuple) {
  return {tuple.source, tuple.target, tuple.target_port, tuple.protocol};
}

void HashTable::Add(const FiveTuple& tuple, uint32_t member) {
  flows_[KeyOf(tuple)].try_emplace(tuple.source_port, member);
}

size_t HashTable::flows() const {
  size_t count = 0;
  for (const auto& [_, ports] : flows_) count += ports.size();
  return count;
}

std::optional<uint32_t> HashTable::MemberOf(const FiveTuple& tuple) const {
  const auto ports = flows_.find(KeyOf(tuple));
  if (ports == flows_.end()) return std::nullopt;
  const auto found = ports->second.find(tuple.source_port);
  if (found == ports->second.end()) return std::nullopt;
  return found->second;
}

std::vector<uint16_t> HashTable::Ports(const FiveTuple& tuple) const {
  std::vector<uint16_t> out;
  const auto ports = flows_.find(KeyOf(tuple));
  if (ports == flows_.end()) return out;
  for (const auto& [port, _] : ports->second) out.push_back(port);
  return out;
}

std::string HashTable::ToString() const {
  std::string text = absl::StrFormat("members=%d,wrong=%.3g", members_, wrong_);
  for (const auto& [key, ports] : flows_) {
    absl::StrAppend(&text, ",", key.source.ToString(), ">", key.target.ToString(), ">",
                    key.target_port, ">", static_cast<int>(key.protocol));
    char before = '=';
    for (const auto& [port, member] : ports) {
      absl::StrAppend(&text, std::string(1, before), port, ".", member);
      before = '+';
    }
  }
  return text;
}

absl::StatusOr<HashTable> HashTable::Parse(absl::string_view text) {
  HashTable out(0);
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (pair.first == "members") {
      // Rows before another number were held against this one.
      if (out.members_ != 0 || !absl::SimpleAtoi(pair.second, &out.members_) ||
          out.members_ > kMembersMost) {
        return Bad(word, absl::StrCat("members=4, once, at most ", kMembersMost));
      }
      continue;
    }
    if (pair.first == "wrong") {
      if (!absl::SimpleAtod(pair.second, &out.wrong_)) return Bad(word, "wrong=1e-06");
      continue;
    }
    FiveTuple tuple;
    std::array<uint32_t, 2> numbers{};
    WEFT_RETURN_IF_ERROR(TakeEnds(pair.first, tuple, absl::MakeSpan(numbers)));
    tuple.target_port = static_cast<uint16_t>(numbers[0]);
    tuple.protocol = static_cast<uint8_t>(numbers[1]);
    for (absl::string_view one : absl::StrSplit(pair.second, '+')) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(one, absl::MaxSplits('.', 1));
      uint32_t port = 0, member = 0;
      if (!absl::SimpleAtoi(parts.first, &port) || port > UINT16_MAX ||
          !absl::SimpleAtoi(parts.second, &member) || member >= out.members_) {
        return Bad(one, absl::StrCat("PORT.MEMBER, with a member below ", out.members_));
      }
      tuple.source_port = static_cast<uint16_t>(port);
      out.Add(tuple, member);
    }
  }
  return out;
}

TupleBits BitsOf(const FiveTuple& tuple) {
  TupleBits out{};
  size_t at = 0;
  const auto add = [&](uint8_t byte) {
    out[at / 8] |= static_cast<uint64_t>(byte) << (at % 8 * 8);
    ++at;
  };
  for (const IpAddress* address : {&tuple.source, &tuple.target}) {
    for (size_t i = 0; i < address->size(); ++i) add(address->bytes[i]);
  }
  for (uint16_t port : {tuple.source_port, tuple.target_port}) {
    add(static_cast<uint8_t>(port >> 8));
    add(static_cast<uint8_t>(port));
  }
  return out;
}

LinearHash::LinearHash(int index_bits, const FiveTuple& origin, const std::vector<Row>& rows)
    : index_bits_(index_bits), origin_(origin) {
  for (Row row : rows) {
    for (const Row& known : rows_) {
      if (!Has(row.bits, Highest(known.bits))) continue;
      weft::topology::Add(row.bits, known.bits);
      row.adds ^= known.adds;
    }
    const int highest = Highest(row.bits);
    if (highest < 0) continue;
    for (Row& known : rows_) {
      if (!Has(known.bits, highest)) continue;
      weft::topology::Add(known.bits, row.bits);
      known.adds ^= row.adds;
    }
    rows_.push_back(row);
  }
}

std::optional<uint32_t> LinearHash::IndexOf(const FiveTuple& tuple) const {
  if (tuple.protocol != origin_.protocol || tuple.source.v6 != origin_.source.v6 ||
      tuple.target.v6 != origin_.target.v6) {
    return std::nullopt;
  }
  TupleBits left = BitsOf(tuple);
  weft::topology::Add(left, BitsOf(origin_));
  uint32_t index = 0;
  for (const Row& row : rows_) {
    if (!Has(left, Highest(row.bits))) continue;
    weft::topology::Add(left, row.bits);
    index ^= row.adds;
  }
  if (Highest(left) >= 0) return std::nullopt;
  return index;
}

std::string LinearHash::ToString() const {
  std::string text = absl::StrCat("bits=", index_bits_, ",origin=", origin_.source.ToString(), ">",
                                  origin_.target.ToString(), ">", origin_.source_port, ">",
                                  origin_.target_port, ">", static_cast<int>(origin_.protocol));
  const size_t bytes = 2 * origin_.source.size() + 4;
  for (const Row& row : rows_) {
    std::string raw;
    for (size_t i = 0; i < bytes; ++i) {
      raw.push_back(static_cast<char>(row.bits[i / 8] >> (i % 8 * 8) & 0xFF));
    }
    absl::StrAppend(&text, ",", absl::BytesToHexString(raw), "=", row.adds);
  }
  return text;
}

absl::StatusOr<LinearHash> LinearHash::Parse(absl::string_view text) {
  int bits = 0;
  FiveTuple origin;
  std::vector<Row> rows;
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    if (pair.first == "bits") {
      if (bits != 0 || !absl::SimpleAtoi(pair.second, &bits) || bits < 1 || bits > 12) {
        return Bad(word, "bits=2, once, 1 to 12");
      }
      continue;
    }
    if (pair.first == "origin") {
      if (!rows.empty()) return Bad(word, "one origin=, before all rows");
      std::array<uint32_t, 3> numbers{};
      WEFT_RETURN_IF_ERROR(TakeEnds(pair.second, origin, absl::MakeSpan(numbers)));
      origin.source_port = static_cast<uint16_t>(numbers[0]);
      origin.target_port = static_cast<uint16_t>(numbers[1]);
      origin.protocol = static_cast<uint8_t>(numbers[2]);
      continue;
    }
    const size_t bytes = 2 * origin.source.size() + 4;
    Row row;
    const bool is_hex = pair.first.size() == 2 * bytes &&
                        std::all_of(pair.first.begin(), pair.first.end(), [](char c) {
                          return absl::ascii_isxdigit(static_cast<unsigned char>(c));
                        });
    if (!is_hex || !absl::SimpleAtoi(pair.second, &row.adds) || row.adds >> bits != 0) {
      return Bad(word, absl::StrCat("behind bits= and origin=, ", bytes,
                                    " hexadecimal bytes, =, and what they add to an index"));
    }
    const std::string raw = absl::HexStringToBytes(pair.first);
    for (size_t i = 0; i < bytes; ++i) {
      row.bits[i / 8] |= static_cast<uint64_t>(static_cast<uint8_t>(raw[i])) << (i % 8 * 8);
    }
    rows.push_back(row);
  }
  if (bits == 0) return Bad(text, "bits=2,origin=10.1.0.1>10.1.1.1>49200>4791>17,...");
  return LinearHash(bits, origin, rows);
}

}  // namespace weft::topology
