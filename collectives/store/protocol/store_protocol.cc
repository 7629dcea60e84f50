#include "collectives/store/protocol/store_protocol.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/little_endian.h"
#include "base/status.h"
#include "net/handshake.h"

namespace weft::collectives {
namespace {

constexpr uint32_t kMagic = 0x54534657;  // "WFST" in the order of the bytes
constexpr uint32_t kInFile = 1;          // in a header's flags
constexpr uint32_t kReusedTexts = 2;     // of a request that is decoded into another
constexpr size_t kReplyFixedBytes = 16;  // code, values, number
constexpr int64_t kNoTimeout = std::numeric_limits<int64_t>::max();

// Reads a payload from its front; once it has failed, everything it gives is empty.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : rest_(bytes) {}

  template <typename T>
  T Number() {
    T value = 0;
    ok_ = TakeLittle(rest_, &value) && ok_;
    return value;
  }

  template <typename TextVector = std::vector<std::string>>
  TextVector Texts(uint32_t count) {
    TextVector texts;
    // Each takes at least its length's four bytes, so a false count cannot cost memory.
    ok_ = ok_ && count <= rest_.size() / sizeof(uint32_t);
    if (ok_) texts.reserve(std::min<uint32_t>(count, 1024));
    for (uint32_t i = 0; ok_ && i < count; ++i) {
      auto size = Number<uint32_t>();
      ok_ = ok_ && size <= rest_.size();
      if (!ok_) break;
      texts.emplace_back(rest_.data(), size);
      rest_.remove_prefix(size);
    }
    return texts;
  }

  // The same, into texts that are there.
  template <typename TextVector>
  void TextsInto(uint32_t count, TextVector& texts) {
    ok_ = ok_ && count <= rest_.size() / sizeof(uint32_t);
    if (!ok_ || count > kReusedTexts) {
      texts = Texts<TextVector>(count);
      return;
    }
    texts.resize(count);
    for (uint32_t i = 0; ok_ && i < count; ++i) {
      auto size = Number<uint32_t>();
      ok_ = ok_ && size <= rest_.size();
      if (!ok_) break;
      texts[i].assign(rest_.data(), size);
      rest_.remove_prefix(size);
    }
  }

  bool AllRead() const { return ok_ && rest_.empty(); }

 private:
  absl::string_view rest_;
  bool ok_ = true;
};

template <typename Out>
void PutHeader(Out& out, uint16_t kind, size_t payload, uint64_t id, uint64_t acknowledged,
               uint32_t flags = 0) {
  PutLittle(out, kMagic);
  PutLittle(out, net::kWireVersion);
  PutLittle(out, kind);
  PutLittle(out, static_cast<uint32_t>(payload));
  PutLittle(out, flags);
  PutLittle(out, id);
  PutLittle(out, acknowledged);
}

// How many keys and values each operation has; -1: any number, but the same of both where both are.
struct Shape {
  int keys;
  int values;
};

Shape ShapeOf(StoreOp op) {
  switch (op) {
    case StoreOp::kSet:
    case StoreOp::kAppend:
    case StoreOp::kAllGather:
    case StoreOp::kGather:
      return {1, 1};
    case StoreOp::kGroup:
    case StoreOp::kExchange:
    case StoreOp::kCompareSet:
      return {1, 2};
    case StoreOp::kGet:
    case StoreOp::kAdd:
    case StoreOp::kDelete:
    case StoreOp::kBarrier:
    case StoreOp::kHello:
    case StoreOp::kWatch:
    case StoreOp::kAnnounce:
      return {1, 0};
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
      return {-1, 0};
    case StoreOp::kMultiSet:
      return {-1, -1};
    case StoreOp::kKeyCount:
    case StoreOp::kGoodbye:
      return {0, 0};
  }
  return {0, 0};
}

bool Fits(const StoreRequest& request) {
  Shape shape = ShapeOf(request.op);
  auto matches = [](int wanted, size_t count) {
    return wanted < 0 || static_cast<size_t>(wanted) == count;
  };
  if (shape.values < 0 && request.keys.size() != request.values.size()) return false;
  return matches(shape.keys, request.keys.size()) && matches(shape.values, request.values.size());
}

}  // namespace

void AppendValue(std::string& body, absl::string_view value) {
  PutLittle(body, static_cast<uint32_t>(value.size()));
  body.append(value.data(), value.size());
}

std::string EncodeValue(absl::string_view value) {
  std::string body;
  body.reserve(value.size() + sizeof(uint32_t));
  AppendValue(body, value);
  return body;
}

absl::string_view DecodeValue(absl::string_view encoded) {
  return encoded.substr(sizeof(uint32_t));
}

absl::StatusOr<std::vector<absl::string_view>> DecodeValues(absl::string_view encoded,
                                                            uint32_t count) {
  Reader reader(encoded);
  auto values = reader.Texts<std::vector<absl::string_view>>(count);
  if (reader.AllRead()) return values;
  return absl::InvalidArgumentError(
      absl::StrCat(encoded.size(), " bytes are not ", count, " values"));
}

std::string EncodeRequest(const StoreRequest& request) {
  size_t payload = 8 + 8 + 4 + 4 + 4 + 4;
  for (const auto& key : request.keys) payload += sizeof(uint32_t) + key.size();
  for (const auto& value : request.values) payload += sizeof(uint32_t) + value.size();
  StoreHead head;
  static_assert(StoreHead::kBytesMax >= kStoreHeaderBytes + 32);
  PutHeader(head, static_cast<uint16_t>(request.op), payload, request.id, request.acknowledged);
  PutLittle(head, request.timeout == absl::InfiniteDuration()
                      ? kNoTimeout
                      : absl::ToInt64Nanoseconds(request.timeout));
  PutLittle(head, request.number);
  PutLittle(head, request.rank);
  PutLittle(head, request.size);
  PutLittle(head, static_cast<uint32_t>(request.keys.size()));
  PutLittle(head, static_cast<uint32_t>(request.values.size()));
  std::string out;
  out.reserve(kStoreHeaderBytes + payload);
  out.append(head.view().data(), head.size());
  for (const auto& key : request.keys) AppendValue(out, key);
  for (const auto& value : request.values) AppendValue(out, value);
  return out;
}

absl::StatusOr<StoreRequest> DecodeRequest(const StoreFrame& frame) {
  StoreRequest request;
  WEFT_RETURN_IF_ERROR(DecodeRequest(frame, request));
  return request;
}

absl::Status DecodeRequest(const StoreFrame& frame, StoreRequest& request) {
  request.op = static_cast<StoreOp>(frame.kind);
  request.id = frame.id;
  request.acknowledged = frame.acknowledged;
  if (frame.kind < static_cast<uint16_t>(StoreOp::kSet) ||
      frame.kind > static_cast<uint16_t>(kStoreOpLast)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown operation ", frame.kind));
  }
  if (frame.in_file) {
    return absl::InvalidArgumentError("reserved bits of a request's header are not zero");
  }
  Reader reader(frame.payload());
  auto timeout = reader.Number<int64_t>();
  request.timeout = timeout == kNoTimeout ? absl::InfiniteDuration() : absl::Nanoseconds(timeout);
  request.number = reader.Number<int64_t>();
  request.rank = reader.Number<int32_t>();
  request.size = reader.Number<int32_t>();
  auto keys = reader.Number<uint32_t>();
  auto values = reader.Number<uint32_t>();
  if (keys > kStoreTextsMax || values > kStoreTextsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("malformed ", ToString(request.op), " request of ", keys, " keys and ", values,
                     " values: at most ", kStoreTextsMax, " of each are allowed"));
  }
  reader.TextsInto(keys, request.keys);
  reader.TextsInto(values, request.values);
  if (!reader.AllRead() || !Fits(request)) {
    return absl::InvalidArgumentError(absl::StrCat("malformed ", ToString(request.op),
                                                   " request of ", frame.payload().size(),
                                                   " bytes: ", keys, " keys, ", values, " values"));
  }
  return absl::OkStatus();
}

StoreFrameOut EncodeReply(StoreOp op, uint64_t id, const StoreReply& reply) {
  StoreFrameOut frame;
  frame.body = reply.body;
  uint32_t values = reply.values;
  if (reply.status.ok() && reply.file != nullptr) {
    PutHeader(frame.head, static_cast<uint16_t>(op) | kReplyBit,
              kReplyFixedBytes + sizeof(uint64_t), id, 0, kInFile);
    PutLittle(frame.head, uint32_t{0});
    PutLittle(frame.head, values);
    PutLittle(frame.head, reply.number);
    PutLittle(frame.head, reply.file_bytes);
    frame.file = reply.file;
    return frame;
  }
  if (!reply.status.ok()) {
    frame.body = std::make_shared<const std::string>(EncodeValue(reply.status.message()));
    values = 1;
  }
  size_t payload = kReplyFixedBytes + (frame.body ? frame.body->size() : 0);
  PutHeader(frame.head, static_cast<uint16_t>(op) | kReplyBit, payload, id, 0);
  PutLittle(frame.head, static_cast<uint32_t>(reply.status.code()));
  PutLittle(frame.head, values);
  PutLittle(frame.head, reply.number);
  return frame;
}

absl::StatusOr<StoreResult> DecodeReply(const StoreFrame& frame,
                                        std::shared_ptr<const FileDescriptor> file) {
  StoreResult result;
  Reader reader(frame.payload());
  auto code = reader.Number<uint32_t>();
  auto values = reader.Number<uint32_t>();
  result.number = reader.Number<int64_t>();
  result.count = values;
  result.streamed = frame.streamed;
  if (frame.in_file) {
    result.file = std::move(file);
    result.file_bytes = reader.Number<uint64_t>();
  } else if (!frame.streamed) {
    result.values = reader.Texts(values);
  }
  bool ok = reader.AllRead() && (frame.kind & kReplyBit) != 0 &&
            code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  if (!ok) {
    return absl::InvalidArgumentError(absl::StrFormat("malformed reply of kind %#x, %d bytes",
                                                      frame.kind, frame.payload().size()));
  }
  if (code != 0) {
    result.status = absl::Status(static_cast<absl::StatusCode>(code),
                                 result.values.empty() ? "" : result.values[0]);
  }
  return result;
}

// Whoever maps a file that could still shrink would be killed by its first read behind the end.
absl::Status CheckFile(const StoreResult& result) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  int seals = fcntl(result.file->get(), F_GET_SEALS);
  struct stat about {};
  bool sealed = seals >= 0 && (seals & kSeals) == kSeals;
  if (!sealed || fstat(result.file->get(), &about) != 0) {
    return absl::InvalidArgumentError("a reply's descriptor is no sealed memory file");
  }
  if (result.file_bytes == 0 || result.file_bytes > kStoreReplyBytesMax ||
      static_cast<uint64_t>(about.st_size) != result.file_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a reply's memory file has ", about.st_size, " bytes, its frame says ",
                     result.file_bytes, "; at most ", kStoreReplyBytesMax, " are right"));
  }
  return absl::OkStatus();
}

absl::Status LoadFile(StoreResult& result) {
  if (result.file == nullptr) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(CheckFile(result));
  void* memory = mmap(nullptr, result.file_bytes, PROT_READ, MAP_SHARED, result.file->get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map a reply of the store");
  Reader reader(absl::string_view(static_cast<const char*>(memory), result.file_bytes));
  result.values = reader.Texts(result.count);
  bool whole = reader.AllRead();
  munmap(memory, result.file_bytes);
  result.file.reset();
  return whole ? absl::OkStatus() : absl::InvalidArgumentError("malformed reply in a file");
}

StoreRequest EncodeArrivals(const std::string& key, int32_t size, const StoreArrivals& arrivals) {
  StoreRequest request;
  request.op = StoreOp::kGroup;
  request.size = size;
  request.rank = arrivals.root;
  request.number = static_cast<int64_t>(arrivals.op);
  request.keys = {key};
  request.values.resize(2);
  request.values[0].reserve(arrivals.ranks.size() * sizeof(int32_t));
  for (int32_t rank : arrivals.ranks) PutLittle(request.values[0], rank);
  for (const auto& value : arrivals.values) AppendValue(request.values[1], value);
  if (arrivals.op == StoreOp::kExchange) AppendValue(request.values[1], arrivals.wanted.Encode());
  return request;
}

absl::StatusOr<StoreArrivals> TakeArrivals(StoreRequest& request) {
  StoreArrivals arrivals;
  std::string wanted;
  if (request.op != StoreOp::kGroup) {
    arrivals.op = request.op;
    if (request.op == StoreOp::kGather) {
      arrivals.root = static_cast<int32_t>(
          std::clamp<int64_t>(request.number, -1, std::numeric_limits<int32_t>::max()));
    }
    arrivals.ranks = {request.rank};
    if (!request.values.empty()) arrivals.values.push_back(std::move(request.values[0]));
    if (request.op == StoreOp::kExchange) wanted = std::move(request.values[1]);
  } else {
    arrivals.op = static_cast<StoreOp>(request.number);
    arrivals.root = request.rank;
    Reader ranks(request.values[0]);
    size_t count = request.values[0].size() / sizeof(int32_t);
    if (count > static_cast<size_t>(kStoreRanksMax)) {
      return absl::InvalidArgumentError(absl::StrCat("group request of ", count, " ranks; at most ",
                                                     kStoreRanksMax, " are allowed"));
    }
    arrivals.ranks.reserve(count);
    for (size_t i = 0; i < count; ++i) arrivals.ranks.push_back(ranks.Number<int32_t>());
    Reader values(request.values[1]);
    bool barrier = arrivals.op == StoreOp::kBarrier;
    if (!barrier) arrivals.values = values.Texts(static_cast<uint32_t>(count));
    if (arrivals.op == StoreOp::kExchange) {
      for (std::string& set : values.Texts(1)) wanted = std::move(set);
    }
    bool known = IsGroup(arrivals.op) && arrivals.op != StoreOp::kGroup;
    if (!known || count == 0 || !ranks.AllRead() || !values.AllRead()) {
      return absl::InvalidArgumentError(absl::StrCat("malformed group request for operation ",
                                                     request.number, " with ", count, " ranks"));
    }
  }
  if (arrivals.op != StoreOp::kExchange) return arrivals;
  auto set = RankSet::Decode(wanted, request.size);
  if (!set.ok()) return Annotate(set.status(), absl::StrCat("exchange '", request.keys[0], "'"));
  arrivals.wanted = *std::move(set);
  return arrivals;
}

absl::Status StoreFrameReader::ParseHeader(absl::string_view header) {
  auto magic = LoadLittle<uint32_t>(header);
  auto version = LoadLittle<uint16_t>(header.substr(4));
  payload_bytes_ = LoadLittle<uint32_t>(header.substr(8));
  if (magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrFormat("bad magic %#010x in a frame", magic));
  }
  if (version != net::kWireVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of version ", version, ", this is version ", net::kWireVersion));
  }
  if (payload_bytes_ > payload_bytes_max_) {
    return absl::InvalidArgumentError(absl::StrCat("frame of ", payload_bytes_, " bytes, at most ",
                                                   payload_bytes_max_, " are allowed"));
  }
  auto flags = LoadLittle<uint32_t>(header.substr(12));
  if ((flags & ~kInFile) != 0) {
    return absl::InvalidArgumentError("reserved bits of a frame's header are not zero");
  }
  frame_ = StoreFrame();
  frame_.in_file = (flags & kInFile) != 0;
  frame_.kind = LoadLittle<uint16_t>(header.substr(6));
  frame_.id = LoadLittle<uint64_t>(header.substr(16));
  frame_.acknowledged = LoadLittle<uint64_t>(header.substr(24));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<StoreFrame>> StoreFrameReader::Feed(absl::string_view bytes,
                                                                 size_t* used) {
  *used = 0;
  if (!in_payload_) {
    size_t take = std::min(bytes.size(), kStoreHeaderBytes - head_.size());
    *used = take;
    if (take == kStoreHeaderBytes) {  // mostly: nothing to collect
      WEFT_RETURN_IF_ERROR(ParseHeader(bytes.substr(0, take)));
    } else {
      head_.append(bytes.data(), take);
      if (head_.size() < kStoreHeaderBytes) return std::nullopt;
      WEFT_RETURN_IF_ERROR(ParseHeader(head_));
    }
    in_payload_ = true;
    taken_ = 0;
    frame_.streamed = sink_ && payload_bytes_ >= kStreamedBytes;
    bytes.remove_prefix(take);
  }
  bytes = bytes.substr(0, payload_bytes_ - taken_);
  *used += bytes.size();
  if (bytes.size() == payload_bytes_ && !frame_.streamed) {  // mostly: nothing to collect
    frame_.view = bytes.empty() ? absl::string_view("") : bytes;
    in_payload_ = false;
    head_.clear();
    return std::exchange(frame_, StoreFrame());
  }
  size_t kept_max = frame_.streamed ? kReplyFixedBytes : payload_bytes_;
  size_t kept = std::min(bytes.size(), kept_max - std::min(kept_max, taken_));
  frame_.held.append(bytes.data(), kept);
  if (bytes.size() > kept) {
    sink_(frame_.id, payload_bytes_ - kReplyFixedBytes, taken_ + kept - kReplyFixedBytes,
          bytes.substr(kept));
  }
  taken_ += bytes.size();
  if (taken_ < payload_bytes_) return std::nullopt;
  in_payload_ = false;
  head_.clear();
  return std::exchange(frame_, StoreFrame());
}

}  // namespace weft::collectives
