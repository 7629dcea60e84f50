// What collectives must give, computed naively, and a check of all of them against it.
#ifndef WEFT_TESTS_COLLECTIVES_NAIVE_H_
#define WEFT_TESTS_COLLECTIVES_NAIVE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "collectives/communicator.h"
#include "collectives/reduce.h"

namespace weft::collectives {

using ByteBuffer = std::vector<std::byte>;

// What rank r contributes: small whole numbers, so that sums are exact in every type and order.
inline ByteBuffer Contribution(DataType type, size_t count, int rank, uint64_t salt = 0) {
  Random random(salt, static_cast<uint64_t>(rank));
  ByteBuffer bytes(count * SizeOf(type));
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * SizeOf(type);
    const int value = static_cast<int>(random.Below(3));
    auto put = [&](auto number) { std::memcpy(at, &number, sizeof(number)); };
    switch (type) {
      case DataType::kBool:
        put(static_cast<uint8_t>(value > 0));
        break;
      case DataType::kUint8:
      case DataType::kInt8:
        put(static_cast<uint8_t>(value));
        break;
      case DataType::kInt16:
        put(static_cast<int16_t>(value));
        break;
      case DataType::kInt32:
        put(static_cast<int32_t>(value));
        break;
      case DataType::kInt64:
        put(static_cast<int64_t>(value));
        break;
      case DataType::kFloat16:
        put(static_cast<uint16_t>(value == 0 ? 0 : value == 1 ? 0x3C00 : 0x4000));
        break;
      case DataType::kBFloat16:
        put(static_cast<uint16_t>(value == 0 ? 0 : value == 1 ? 0x3F80 : 0x4000));
        break;
      case DataType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DataType::kFloat64:
        put(static_cast<double>(value));
        break;
      case DataType::kComplex64: {
        const float parts[2] = {static_cast<float>(value), 1};
        std::memcpy(at, parts, sizeof(parts));
        break;
      }
      case DataType::kComplex128: {
        const double parts[2] = {static_cast<double>(value), 1};
        std::memcpy(at, parts, sizeof(parts));
        break;
      }
    }
  }
  return bytes;
}

inline ByteBuffer Reduced(DataType type, ReduceOp op, size_t count, int n, uint64_t salt = 0) {
  ByteBuffer sum = Contribution(type, count, 0, salt);
  for (int r = 1; r < n; ++r) {
    const ByteBuffer next = Contribution(type, count, r, salt);
    ReduceFor(type, op, KernelSet::kReference)(sum.data(), sum.data(), next.data(), sum.size());
  }
  if (op == ReduceOp::kAverage && n > 1) {
    ScaleFor(type, KernelSet::kReference)(sum.data(), sum.size(), n);
  }
  return sum;
}

inline ByteBuffer Part(const ByteBuffer& whole, size_t part, size_t bytes) {
  return ByteBuffer(whole.begin() + static_cast<ptrdiff_t>(part * bytes),
                    whole.begin() + static_cast<ptrdiff_t>((part + 1) * bytes));
}

#define ASSERT_DONE(work)                               \
  do {                                                  \
    const absl::Status status_of_work = (work)->Wait(); \
    ASSERT_TRUE(status_of_work.ok()) << status_of_work; \
  } while (false)

// All collectives of one type, operator and count, out of place and in place.
inline void CheckAll(Communicator& world, DataType type, ReduceOp op, size_t count) {
  const int n = world.size(), me = world.rank().value();
  const size_t ranks = static_cast<size_t>(n), bytes = count * SizeOf(type);
  const GroupRank root(static_cast<int>(count) % n);
  const bool is_root = root.value() == me;
  const ByteBuffer mine = Contribution(type, count, me),
                   wide = Contribution(type, count * ranks, me);
  ByteBuffer gathered;
  for (int r = 0; r < n; ++r) {
    const ByteBuffer part = Contribution(type, count, r);
    gathered.insert(gathered.end(), part.begin(), part.end());
  }
  for (const bool in_place : {false, true}) {
    SCOPED_TRACE(absl::StrCat(ToString(type), " ", ToString(op), " count ", count, " n ", n,
                              " rank ", me, in_place ? " in place" : ""));
    if (Supports(op, type)) {
      ByteBuffer out = in_place ? mine : ByteBuffer(bytes);
      ASSERT_DONE(
          world.AllReduce(in_place ? out.data() : mine.data(), out.data(), count, type, op));
      ASSERT_EQ(out, Reduced(type, op, count, n));

      out = in_place ? mine : ByteBuffer(is_root ? bytes : 0);
      ASSERT_DONE(
          world.Reduce(in_place ? out.data() : mine.data(), out.data(), count, type, op, root));
      if (is_root) {
        ASSERT_EQ(out, Reduced(type, op, count, n));
      }

      ByteBuffer in = wide;
      out.assign(bytes, std::byte{});
      std::byte* to = in_place ? in.data() + static_cast<size_t>(me) * bytes : out.data();
      ASSERT_DONE(world.ReduceScatter(in.data(), to, count, type, op));
      if (in_place) out = Part(in, static_cast<size_t>(me), bytes);
      ASSERT_EQ(out, Part(Reduced(type, op, count * ranks, n), static_cast<size_t>(me), bytes));
    }
    const size_t own = static_cast<size_t>(me) * bytes;
    ByteBuffer out(ranks * bytes);
    if (in_place) std::copy(mine.begin(), mine.end(), out.begin() + static_cast<ptrdiff_t>(own));
    ASSERT_DONE(
        world.AllGather(in_place ? out.data() + own : mine.data(), out.data(), count, type));
    ASSERT_EQ(out, gathered);

    out.assign(ranks * bytes, std::byte{});
    if (in_place) std::copy(mine.begin(), mine.end(), out.begin() + static_cast<ptrdiff_t>(own));
    ASSERT_DONE(
        world.Gather(in_place ? out.data() + own : mine.data(), out.data(), count, type, root));
    if (is_root) {
      ASSERT_EQ(out, gathered);
    }

    out = in_place ? mine : ByteBuffer(bytes);
    ASSERT_DONE(
        world.Broadcast(in_place ? out.data() : mine.data(), out.data(), count, type, root));
    ASSERT_EQ(out, Contribution(type, count, root.value()));

    ByteBuffer in = wide;
    out.assign(bytes, std::byte{});
    std::byte* to = in_place && is_root ? in.data() + own : out.data();
    ASSERT_DONE(world.Scatter(in.data(), to, count, type, root));
    if (in_place && is_root) out = Part(in, static_cast<size_t>(me), bytes);
    ASSERT_EQ(
        out, Part(Contribution(type, count * ranks, root.value()), static_cast<size_t>(me), bytes));

    out = in_place ? wide : ByteBuffer(ranks * bytes);
    ASSERT_DONE(world.AllToAll(in_place ? out.data() : wide.data(), out.data(), count, type));
    for (int r = 0; r < n; ++r) {
      ASSERT_EQ(Part(out, static_cast<size_t>(r), bytes),
                Part(Contribution(type, count * ranks, r), static_cast<size_t>(me), bytes));
    }
  }
  ASSERT_DONE(world.Barrier());
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_NAIVE_H_
