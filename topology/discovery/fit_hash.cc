#include "topology/discovery/fit_hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "base/status.h"

namespace weft::topology {
namespace {

constexpr size_t kFirstLook = 96;  // observations that a candidate must explain first
constexpr int64_t kGlance = 20;
constexpr uint32_t kPrimeMost = 61;
constexpr int kOpenMost = 5;
constexpr int kConstantBits = 16;  // of the constant that a seed adds, where all must be tried

constexpr std::array kFunctions = {HashFunction::kCrc16Ccitt, HashFunction::kCrc16Arc,
                                   HashFunction::kCrc32, HashFunction::kCrc32c,
                                   HashFunction::kXor16};
constexpr std::array<uint32_t, 4> kFields = {
    kHashFiveTuple, kHashSourceAddress | kHashTargetAddress | kHashSourcePort | kHashTargetPort,
    kHashSourcePort | kHashTargetPort, kHashSourcePort};
constexpr std::array<uint32_t, 4> kBuckets = {64, 128, 256, 512};

// One way from a hash's bits to a member.
struct Selection {
  HashSelect select = HashSelect::kModulo;
  std::vector<uint32_t> owner;  // [bucket], kResilient
  int constant_bits = 0;        // of the constant that are to be tried
  int constant_shift = 0;       // they begin at this bit
};

std::vector<Selection> Selections(uint32_t members, int width) {
  const bool is_power = std::has_single_bit(members);
  std::vector<Selection> out(2);
  out[1].select = HashSelect::kThreshold;
  if (!is_power) {
    // Modulo depends on all bits, thresholds almost only on the highest.
    out[1].constant_bits = kConstantBits;
    out[1].constant_shift = width - kConstantBits;
    out[0].constant_bits = kConstantBits;
    if (width > kConstantBits) out.erase(out.begin());
  }
  const auto alive = std::make_unique<bool[]>(members);  // NOLINT
  std::fill(alive.get(), alive.get() + members, true);
  for (uint32_t buckets : kBuckets) {
    Selection one;
    one.select = HashSelect::kResilient;
    one.constant_bits = std::countr_zero(buckets);
    for (uint32_t i = 0; i < buckets; ++i) {
      one.owner.push_back(static_cast<uint32_t>(
          ResilientOwner(i, buckets, absl::MakeConstSpan(alive.get(), members))));
    }
    out.push_back(std::move(one));
  }
  return out;
}

uint32_t Pick(const Selection& selection, uint32_t hash, int width, uint32_t members) {
  switch (selection.select) {
    case HashSelect::kModulo:
      return hash % members;
    case HashSelect::kThreshold:
      return static_cast<uint32_t>(
          SelectByThreshold(width == 32 ? hash >> 1 : hash << (31 - width), members));
    case HashSelect::kResilient:
      return selection.owner[hash % selection.owner.size()];
  }
  return 0;
}

uint32_t RotateRight(uint32_t value, int bits, int width) {
  if (bits == 0) return value;
  const uint64_t mask = (uint64_t{1} << width) - 1;
  return static_cast<uint32_t>((value >> bits | static_cast<uint64_t>(value) << (width - bits)) &
                               mask);
}

// Whether members can be numbered so that almost all is explained.
bool Explains(const Selection& selection, const std::vector<uint32_t>& hashes, uint32_t constant,
              int width, uint32_t members, absl::Span<const HashObservation> seen,
              double wrong_max) {
  std::vector<uint32_t> votes(static_cast<size_t>(members) * members);
  const size_t count = std::min(seen.size(), kFirstLook);
  const auto wrong_most = static_cast<int64_t>(wrong_max * static_cast<double>(count));
  // A few first: each index has one member, or the candidate is wrong.
  std::vector<uint32_t> first(members, members);
  int64_t wrong = 0;
  for (size_t i = 0; i < std::min<size_t>(count, kGlance); ++i) {
    uint32_t& member = first[Pick(selection, hashes[i] ^ constant, width, members)];
    if (member == members) member = seen[i].member;
    wrong += member != seen[i].member ? 1 : 0;
    // The first of an index may itself be the wrong one, which makes all others wrong.
    if (wrong > kGlance / 4 + wrong_most) return false;
  }
  for (size_t i = 0; i < count; ++i) {
    const uint32_t index = Pick(selection, hashes[i] ^ constant, width, members);
    ++votes[static_cast<size_t>(index) * members + seen[i].member];
  }
  // The best member of each index, whether or not two share one: no fewer than a numbering has.
  uint32_t right = 0;
  for (uint32_t index = 0; index < members; ++index) {
    const auto row = votes.begin() + static_cast<ptrdiff_t>(index) * members;
    right += *std::max_element(row, row + members);
  }
  return static_cast<double>(count - right) <= wrong_max * static_cast<double>(count);
}

SwitchHashOptions Options(HashFunction function, uint32_t fields, int offset,
                          const Selection& selection, uint32_t seed) {
  SwitchHashOptions out;
  out.function = function;
  out.fields = fields;
  out.offset = offset;
  out.select = selection.select;
  if (!selection.owner.empty()) out.buckets = static_cast<uint32_t>(selection.owner.size());
  out.seed = seed;
  return out;
}

// The seed that adds `constant` to the hash of a tuple; seeds act as a linear map.
std::optional<uint32_t> SeedOf(HashFunction function, uint32_t fields, int width,
                               const FiveTuple& tuple, uint32_t constant) {
  const auto hash = [&](uint32_t seed) {
    SwitchHashOptions options;
    options.function = function;
    options.fields = fields;
    options.seed = seed;
    return SwitchHash::Create(options)->Hash(tuple);
  };
  const uint32_t zero = hash(0);
  // Elimination, a row for each highest bit.
  std::array<std::pair<uint32_t, uint32_t>, 32> rows{};  // what it adds, seed
  const auto reduce = [&](uint32_t& adds, uint32_t& seed) {
    while (adds != 0) {
      const auto& [row, row_seed] = rows[static_cast<size_t>(std::bit_width(adds)) - 1];
      if (row == 0) return;
      adds ^= row;
      seed ^= row_seed;
    }
  };
  for (int bit = 0; bit < width; ++bit) {
    uint32_t seed = uint32_t{1} << bit, adds = hash(seed) ^ zero;
    reduce(adds, seed);
    if (adds != 0) rows[static_cast<size_t>(std::bit_width(adds)) - 1] = {adds, seed};
  }
  uint32_t seed = 0;
  reduce(constant, seed);
  if (constant != 0) return std::nullopt;
  return seed;
}

// The prime p of 2^k p members; 0: they are not that many.
uint32_t OddPrime(uint32_t members) {
  const uint32_t odd = members >> std::countr_zero(members);
  for (uint32_t i = 3; i * i <= odd; i += 2) {
    if (odd % i == 0) return 0;
  }
  return odd > 1 ? odd : 0;
}

// The constant c with which flows of one member have one (hash ^ c) mod `prime`. A bit h of the
// hash adds 2^i (h + c - 2 h c) = 2^i c + 2^i h (1 - 2 c), which is linear in h over the integers
// modulo the prime: two flows of one member give an equation for the signs x = 1 - 2 c of all bits,
// and enough of them leave one solution and its multiples. The lowest bits, which are alike in all
// flows of one of 2^k p members, are open.
class OddModulo {
 public:
  OddModulo(uint32_t prime, int width, int open)
      : prime_(prime), width_(static_cast<size_t>(width)), open_(static_cast<size_t>(open)) {}

  void Add(uint32_t hash, uint32_t other) {
    std::vector<uint32_t> row(width_);
    uint32_t power = 1;
    for (size_t i = 0; i < width_; ++i) {
      const uint32_t a = hash >> i & 1, b = other >> i & 1;
      row[i] = i < open_ ? 0 : power * (a + prime_ - b) % prime_;
      power = 2 * power % prime_;
    }
    for (const auto& [pivot, known] : rows_) Reduce(row, known, pivot);
    const auto first = std::find_if(row.begin(), row.end(), [](uint32_t x) { return x != 0; });
    if (first == row.end()) return;
    const auto pivot = static_cast<size_t>(first - row.begin());
    const uint32_t inverse = Inverse(*first);
    for (uint32_t& x : row) x = x * inverse % prime_;
    for (auto& [_, known] : rows_) Reduce(known, row, pivot);
    rows_.emplace_back(pivot, std::move(row));
  }
  size_t rank() const { return rows_.size(); }

  bool IsSolved() const { return rank() + 1 + open_ == width_; }
  // All have the same effect on which flows are alike: all signs the other way, any open bits.
  std::vector<uint32_t> Constants() const {
    if (!IsSolved()) return {};
    std::vector<uint32_t> x(width_, 1);  // the one bit without a row is 1
    for (const auto& [pivot, row] : rows_) {
      uint32_t sum = 0;
      for (size_t i = 0; i < width_; ++i) sum += i == pivot || IsPivot(i) ? 0 : row[i];
      x[pivot] = (prime_ - sum % prime_) % prime_;
    }
    uint32_t constant = 0;
    for (size_t i = 0; i < width_; ++i) {
      if (x[i] != 1 && x[i] != prime_ - 1) return {};
      constant |= x[i] == 1 ? 0 : uint32_t{1} << i;
    }
    const auto all = static_cast<uint32_t>((uint64_t{1} << width_) - 1);
    std::vector<uint32_t> out;
    for (uint32_t low = 0; low < uint32_t{1} << open_; ++low) {
      out.push_back(constant ^ low);
      out.push_back(constant ^ low ^ all);
    }
    return out;
  }

 private:
  bool IsPivot(size_t bit) const {
    return std::any_of(rows_.begin(), rows_.end(),
                       [&](const auto& one) { return one.first == bit; });
  }
  void Reduce(std::vector<uint32_t>& row, const std::vector<uint32_t>& by, size_t pivot) const {
    const uint32_t times = prime_ - row[pivot];
    if (row[pivot] == 0) return;
    for (size_t i = 0; i < width_; ++i) row[i] = (row[i] + times * by[i]) % prime_;
  }
  uint32_t Inverse(uint32_t x) const {
    uint32_t out = 1;
    while (x * out % prime_ != 1) ++out;
    return out;
  }

  const uint32_t prime_;
  const size_t width_, open_;
  std::vector<std::pair<size_t, std::vector<uint32_t>>> rows_;  // bit that is 1 there alone
};

}  // namespace

std::optional<FittedHash> TryHash(const SwitchHash& hash, uint32_t members,
                                  absl::Span<const HashObservation> seen, double wrong_max) {
  MemberOrder order = FitOrder(hash, members, seen);
  if (static_cast<double>(order.wrong) > wrong_max * static_cast<double>(seen.size())) {
    return std::nullopt;
  }
  FittedHash out{hash, std::move(order.member_at), order.right, order.wrong};
  out.chance_log10 = -static_cast<double>(order.right) * std::log10(members);
  return out;
}

namespace {

class SiliconFit {
 public:
  SiliconFit(uint32_t members, absl::Span<const HashObservation> seen, double wrong_max,
             const std::atomic<bool>* ends)
      : members_(members), seen_(seen), wrong_max_(wrong_max), ends_(ends) {}

  // With every constant that a seed can add, of at most so many bits. The one that explains most:
  // selections are alike, so that another one may explain nearly all.
  std::optional<FittedHash> Try(HashFunction function, uint32_t fields, int offset,
                                int constant_bits_most) const {
    const SwitchHash plain = *SwitchHash::Create(Options(function, fields, 0, {}, 0));
    const int width = plain.width();
    std::vector<uint32_t> hashes;
    for (size_t i = 0; i < std::min(seen_.size(), kFirstLook); ++i) {
      hashes.push_back(RotateRight(plain.Hash(seen_[i].tuple), offset, width));
    }
    if (auto fitted = TryOddModulo(plain, function, fields, offset)) return fitted;
    std::optional<FittedHash> best;
    for (const Selection& selection : Selections(members_, width)) {
      if (selection.constant_bits > constant_bits_most) continue;
      for (uint32_t step = 0; step < uint32_t{1} << selection.constant_bits; ++step) {
        if (ends_ != nullptr && ends_->load(std::memory_order_relaxed)) return best;
        const uint32_t constant = step << selection.constant_shift;
        if (!Explains(selection, hashes, constant, width, members_, seen_, wrong_max_)) continue;
        const std::optional<uint32_t> seed =
            SeedOf(function, fields, width, seen_[0].tuple,
                   RotateRight(constant, (width - offset) % width, width));
        if (!seed.has_value()) continue;
        absl::StatusOr<SwitchHash> hash =
            SwitchHash::Create(Options(function, fields, offset, selection, *seed));
        if (!hash.ok()) continue;
        std::optional<FittedHash> fitted = TryHash(*hash, members_, seen_, wrong_max_);
        if (!fitted.has_value() || (best.has_value() && best->wrong <= fitted->wrong)) continue;
        best = std::move(fitted);
        if (best->wrong == 0) return best;
      }
    }
    return best;
  }

 private:
  // By modulo, of a hash of 32 bits, where all seeds would have to be tried.
  std::optional<FittedHash> TryOddModulo(const SwitchHash& plain, HashFunction function,
                                         uint32_t fields, int offset) const {
    constexpr size_t kTries = 4;  // each by other flows, as some may have been seen wrongly
    constexpr size_t kEquations = 64;
    const uint32_t prime = OddPrime(members_);
    const int width = plain.width();
    const int open = std::countr_zero(members_);
    if (prime == 0 || prime > kPrimeMost || width <= kConstantBits || open > kOpenMost) {
      return std::nullopt;
    }
    const size_t count = std::min(seen_.size(), kTries * kEquations);
    for (size_t begin = 0; begin < count; begin += kEquations) {
      OddModulo equations(prime, width, open);
      std::vector<std::optional<uint32_t>> first(members_);
      for (size_t i = begin; i < std::min(seen_.size(), begin + kEquations + members_); ++i) {
        const uint32_t hash = RotateRight(plain.Hash(seen_[i].tuple), offset, width);
        std::optional<uint32_t>& example = first[seen_[i].member];
        if (!example.has_value()) {
          example = hash;
        } else {
          equations.Add(hash, *example);
        }
        if (equations.rank() + static_cast<size_t>(open) == static_cast<size_t>(width)) break;
      }
      for (uint32_t constant : equations.Constants()) {
        const std::optional<uint32_t> seed =
            SeedOf(function, fields, width, seen_[0].tuple,
                   RotateRight(constant, (width - offset) % width, width));
        if (!seed.has_value()) continue;
        auto hash = SwitchHash::Create(Options(function, fields, offset, {}, *seed));
        if (!hash.ok()) continue;
        if (auto fitted = TryHash(*hash, members_, seen_, wrong_max_)) return fitted;
      }
    }
    return std::nullopt;
  }

  const uint32_t members_;
  const absl::Span<const HashObservation> seen_;
  const double wrong_max_;
  const std::atomic<bool>* ends_;
};

}  // namespace

std::optional<FittedHash> FitSilicon(uint32_t members, absl::Span<const HashObservation> seen,
                                     absl::Span<const SwitchHash> before, double wrong_max,
                                     const std::atomic<bool>* ends) {
  if (seen.size() < 16 || members < 2) return std::nullopt;
  const SiliconFit fit(members, seen, wrong_max, ends);
  for (const SwitchHash& hash : before) {
    const SwitchHashOptions& like = hash.options();
    if (!hash.linear()) continue;
    auto fitted = fit.Try(like.function, like.fields, like.offset, kConstantBits);
    if (fitted.has_value()) return fitted;
  }
  // What needs no constant first, then few bits of one.
  for (int bits : {0, 9, kConstantBits}) {
    for (HashFunction function : kFunctions) {
      const int width = SwitchHash::Create(Options(function, kHashFiveTuple, 0, {}, 0))->width();
      for (uint32_t fields : kFields) {
        for (int offset = 0; offset < width; ++offset) {
          auto fitted = fit.Try(function, fields, offset, bits);
          if (fitted.has_value()) return fitted;
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace weft::topology
