// The protocol between the store's clients and server, after the handshake of net/handshake.h:
// frames of a fixed header and a payload, little endian.
//
//   request   header{op, id, acknowledged}  i64 timeout_ns, i64 number, i32 rank, i32 size,
//                                           u32 keys, u32 values, then each key and value
//   reply     header{op | kReplyBit, id}    u32 code, u32 values, i64 number, then each value
//
// On a Unix socket, the values of a large reply may lie in a sealed memory file, whose descriptor
// comes beside the frame: one copy for all ranks of a host.
//
// Texts are a u32 length and that many bytes. A reply whose code is not 0 (absl::StatusCode) has
// its message as the only value. Format: docs/wire-format.md. Nothing here does I/O or has threads.
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_PROTOCOL_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_PROTOCOL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "collectives/store/protocol/store_budget.h"
#include "collectives/store/rank_set.h"

namespace weft::collectives {

inline constexpr size_t kStoreKeyBytesMax = size_t{4} << 10;
inline constexpr size_t kStoreValueBytesMax = size_t{64} << 20;
// A request: one value of the largest size, or many small ones, and keys beside them.
inline constexpr size_t kStoreRequestBytesMax = kStoreValueBytesMax + (size_t{1} << 20);
// A reply: what a client accepts. The server's own bound on what it queues is lower.
inline constexpr size_t kStoreReplyBytesMax = size_t{1} << 30;
inline constexpr size_t kStoreHeaderBytes = 32;
// Ranks of a job, of a group, and that a client speaks for.
inline constexpr int32_t kStoreRanksMax = 1 << 20;
// Keys, and values, of one request, so that empty ones do not take many times its size.
inline constexpr uint32_t kStoreTextsMax = uint32_t{1} << 20;

enum class StoreOp : uint16_t {
  kSet = 1,
  kGet = 2,
  kAdd = 3,
  kCompareSet = 4,
  kDelete = 5,
  kKeyCount = 6,
  kCheck = 7,
  kWait = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kBarrier = 12,
  kAllGather = 13,
  kGoodbye = 14,   // the client ends; no reply, and its session is forgotten at once
  kHello = 15,     // first on a Unix socket, in place of the handshake; key: a StoreHello
  kGroup = 16,     // arrivals of several ranks at one group (StoreArrivals)
  kWatch = 17,     // answers once the key's version is not `number`
  kGather = 18,    // an all-gather of which only rank `number` gets the values
  kAnnounce = 19,  // a relay names one of its ranks, of a higher generation; key: a StoreHello
  kExchange = 20,  // an all-gather that brings the values of those ranks that are wanted
};
inline constexpr StoreOp kStoreOpLast = StoreOp::kExchange;
inline constexpr uint16_t kReplyBit = 0x8000;
const char* ToString(StoreOp op);  // "compare-set"
// Whether a second execution could be noticed: such requests are executed once, however often a
// reconnecting client sends them.
bool ChangesState(StoreOp op);
// Whether ranks arrive at it: a barrier, all-gather, gather, exchange, or arrivals at one of these.
bool IsGroup(StoreOp op);

// Mostly one or two.
using StoreTexts = absl::InlinedVector<std::string, 2>;

struct StoreRequest {
  StoreOp op = StoreOp::kKeyCount;
  uint64_t id = 0;            // ascending from 1 within a client
  uint64_t acknowledged = 0;  // all smaller ids that change something have had their replies
  absl::Duration timeout = absl::ZeroDuration();
  int64_t number = 0;  // kAdd: the amount
  int32_t rank = 0;    // of a group: who arrives
  int32_t size = 0;
  StoreTexts keys;
  StoreTexts values;  // kCompareSet: expected, desired; kExchange: its own, a RankSet that it wants
};

// Values are kept and sent in their encoded form (length, bytes), so that a large one is never
// copied for a reply; a body may hold several.
using StoreBody = std::shared_ptr<const std::string>;
std::string EncodeValue(absl::string_view value);
void AppendValue(std::string& body, absl::string_view value);
absl::string_view DecodeValue(absl::string_view encoded);  // of EncodeValue's form
// So many of them, one after the other. kInvalidArgument: these are others.
absl::StatusOr<std::vector<absl::string_view>> DecodeValues(absl::string_view encoded,
                                                            uint32_t count);

// A reply as the server makes it.
struct StoreReply {
  absl::Status status;
  int64_t number = 0;
  uint32_t values = 0;
  StoreBody body;       // `values` encoded values; null: none
  uint32_t shared = 1;  // by so many replies of different clients
  // The same in a sealed memory file, in place of `body`.
  std::shared_ptr<const FileDescriptor> file;
  uint64_t file_bytes = 0;
  // Refused for want of memory, before anything was done: what is asked again may be done.
  bool full = false;
};

// Ranks that have arrived at one group: one, with its own request, or those on behalf of whom a
// relay speaks, with a kGroup request. Their values are one text, the ranks' values one after the
// other, encoded; those that an exchange's ranks want come after them.
struct StoreArrivals {
  StoreOp op = StoreOp::kBarrier;  // kBarrier, kAllGather, kGather, kExchange
  int32_t root = 0;                // kGather
  std::vector<int32_t> ranks;
  std::vector<std::string> values;  // of each; none for kBarrier
  RankSet wanted;                   // kExchange: by any of them
};
StoreRequest EncodeArrivals(const std::string& key, int32_t size, const StoreArrivals& arrivals);
// The arrivals of a request that IsGroup(), whose values it moves out.
absl::StatusOr<StoreArrivals> TakeArrivals(StoreRequest& request);

// A reply as the client gets it.
struct StoreResult {
  absl::Status status;
  int64_t number = 0;
  std::vector<std::string> values;
  uint32_t count = 0;  // of values, wherever they are
  // The values lie here instead; LoadFile() fetches them.
  std::shared_ptr<const FileDescriptor> file;
  uint64_t file_bytes = 0;
  bool streamed = false;  // the values went to the reader's sink
};
// Whether that file is sealed and of the size that its frame gives, so that it may be mapped.
absl::Status CheckFile(const StoreResult& result);
absl::Status LoadFile(StoreResult& result);

// A frame's header and fixed part.
class StoreHead {
 public:
  static constexpr size_t kBytesMax = kStoreHeaderBytes + 32;
  void append(const char* bytes, size_t count) {
    WEFT_CHECK(count <= kBytesMax - size_, "size_=" << int{size_} << " count=" << count);
    std::memcpy(bytes_.data() + size_, bytes, count);
    size_ = static_cast<uint8_t>(size_ + count);
  }
  absl::string_view view() const { return {bytes_.data(), size_}; }
  size_t size() const { return size_; }

 private:
  std::array<char, kBytesMax> bytes_;
  uint8_t size_ = 0;
};

// Header and payload in two parts, to be written one after the other.
struct StoreFrameOut {
  StoreHead head;
  StoreBody body;
  std::shared_ptr<const FileDescriptor> file;  // goes beside the head's first byte
  size_t size() const { return head.size() + (body ? body->size() : 0); }
};

std::string EncodeRequest(const StoreRequest& request);
// With reply.file: a frame for a Unix socket, beside which the descriptor goes.
StoreFrameOut EncodeReply(StoreOp op, uint64_t id, const StoreReply& reply);

struct StoreFrame {
  uint16_t kind = 0;  // a StoreOp, with kReplyBit in replies
  uint64_t id = 0;
  uint64_t acknowledged = 0;
  // Valid as long as the bytes that were fed, where they had all of it.
  absl::string_view payload() const { return view.data() != nullptr ? view : held; }
  absl::string_view view;
  std::string held;
  bool in_file = false;   // the values are in a file, beside the frame
  bool streamed = false;  // the values went to the reader's sink
};
// Into `request`, whose texts' memory is used again.
absl::Status DecodeRequest(const StoreFrame& frame, StoreRequest& request);
absl::StatusOr<StoreRequest> DecodeRequest(const StoreFrame& frame);
absl::StatusOr<StoreResult> DecodeReply(const StoreFrame& frame,
                                        std::shared_ptr<const FileDescriptor> file = nullptr);

// Cuts a stream of bytes into frames. Memory grows with what arrived, never with what a header
// claims. After an error it stays failed.
class StoreFrameReader {
 public:
  explicit StoreFrameReader(size_t payload_bytes_max) : payload_bytes_max_(payload_bytes_max) {}

  // Takes bytes up to the end of one frame; `used` says how many. Nothing yet: nullopt.
  absl::StatusOr<std::optional<StoreFrame>> Feed(absl::string_view bytes, size_t* used);
  bool in_payload() const { return in_payload_; }  // of a frame that is not whole
  size_t buffered() const { return head_.size() + frame_.held.size(); }
  Bytes memory() const { return HeapBytes(frame_.held); }  // of a frame that is half here

  // Who simulates many clients cannot keep a large reply for each: with a sink, payloads from
  // kStreamedBytes on go there piece by piece, with their offset among the encoded values, which
  // are `total` bytes.
  using Sink =
      std::function<void(uint64_t id, size_t total, size_t offset, absl::string_view bytes)>;
  static constexpr size_t kStreamedBytes = 8192;
  void set_sink(Sink sink) { sink_ = std::move(sink); }

 private:
  absl::Status ParseHeader(absl::string_view header);

  size_t payload_bytes_max_;
  std::string head_;  // until it is whole
  bool in_payload_ = false;
  size_t payload_bytes_ = 0;
  size_t taken_ = 0;  // of the payload
  Sink sink_;
  StoreFrame frame_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_PROTOCOL_H_
