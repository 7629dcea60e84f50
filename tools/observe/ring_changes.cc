#include "tools/observe/ring_changes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_room.h"
#include "base/read_file.h"
#include "base/records.h"
#include "base/status.h"

namespace weft::observe {
namespace {

using Header = RecordFileHeader;
constexpr size_t kNumbersBytes = offsetof(Header, name);  // all of the header but names and lines

// The start of the changes; then the header's numbers, names, lines and slots.
struct Counts {
  uint64_t magic = Header::kMagic;
  uint64_t first_record = 0, records = 0;
  uint64_t first_name = 0, names = 0;
  uint64_t first_text = 0, text = 0;

  size_t bytes() const {
    return sizeof(Counts) + kNumbersBytes + names * Header::kNameBytes + text +
           records * sizeof(RecordSlot);
  }
};

// A header's numbers out of bytes of any alignment. Its atomics are plain numbers in a file.
template <typename T>
T Number(const char* header, size_t offset) {
  T value;
  std::memcpy(&value, header + offset, sizeof(value));
  return value;
}
uint64_t CapacityOf(const char* header) {
  return Number<uint64_t>(header, offsetof(Header, capacity));
}
uint64_t MadeOf(const char* header) {
  return Number<uint64_t>(header, offsetof(Header, process_start));
}
uint64_t WrittenOf(const char* header) { return Number<uint64_t>(header, offsetof(Header, next)); }

bool IsCapacity(uint64_t capacity) {
  return std::has_single_bit(capacity) &&
         capacity <=
             (static_cast<uint64_t>(kRingMost.count()) - Header::kBytes) / sizeof(RecordSlot);
}

size_t RingBytes(uint64_t capacity) { return Header::kBytes + capacity * sizeof(RecordSlot); }

uint64_t WrittenNow(const std::string& path, uint64_t otherwise) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return otherwise;  // it was removed: nobody writes any more
  uint64_t written = otherwise;
  if (pread(fd, &written, sizeof(written), offsetof(Header, next)) != sizeof(written)) {
    written = otherwise;
  }
  close(fd);
  return written;
}

absl::Status NoChanges(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("what came is no change of a ring of records: ", why));
}

// Level 1: records repeat their neighbours' high bytes, and shrink to a third by that alone.
std::string Pack(absl::string_view plain) {
  const uint64_t size = plain.size();
  uLongf packed = compressBound(plain.size());
  std::string out(sizeof(size) + packed, '\0');
  std::memcpy(out.data(), &size, sizeof(size));
  const int result = compress2(reinterpret_cast<Bytef*>(out.data() + sizeof(size)), &packed,
                               reinterpret_cast<const Bytef*>(plain.data()), plain.size(), 1);
  WEFT_CHECK(result == Z_OK, "zlib's compress2: " << result);  // the bound has room for all
  out.resize(sizeof(size) + packed);
  return out;
}

absl::StatusOr<std::string> Unpack(absl::string_view packed) {
  uint64_t size = 0;
  if (packed.size() < sizeof(size)) return NoChanges("it is too short");
  std::memcpy(&size, packed.data(), sizeof(size));
  packed.remove_prefix(sizeof(size));
  // Deflate makes nothing more than 1,032 times smaller.
  if (size > static_cast<uint64_t>(kRingMost.count()) || size / 1100 > packed.size()) {
    return NoChanges(absl::StrCat("it claims ", size, " bytes in ", packed.size()));
  }
  std::string out(size, '\0');
  uLongf unpacked = size;
  if (uncompress(reinterpret_cast<Bytef*>(out.data()), &unpacked,
                 reinterpret_cast<const Bytef*>(packed.data()), packed.size()) != Z_OK ||
      unpacked != size) {
    return NoChanges("it does not unpack to its size");
  }
  return out;
}

}  // namespace

std::string CursorText(const RingCursor& cursor) {
  return absl::StrCat(cursor.made, ".", cursor.records, ".", cursor.names, ".", cursor.text);
}

absl::StatusOr<RingCursor> ParseCursor(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  RingCursor out;
  uint64_t* const to[] = {&out.made, &out.records, &out.names, &out.text};
  bool right = parts.size() == std::size(to);
  for (size_t i = 0; right && i < std::size(to); ++i) right = absl::SimpleAtoi(parts[i], to[i]);
  if (!right) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is no cursor of a ring; right is 17.1024.12.300"));
  }
  return out;
}

absl::StatusOr<std::string> ChangesSince(const std::string& path, const RingCursor& cursor) {
  WEFT_ASSIGN_OR_RETURN(const std::string ring, ReadFile(path, kRingMost));
  const bool is_ring =
      ring.size() >= Header::kBytes && Number<uint64_t>(ring.data(), 0) == Header::kMagic &&
      IsCapacity(CapacityOf(ring.data())) && ring.size() >= RingBytes(CapacityOf(ring.data()));
  if (!is_ring) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no file of records of this version of Weft"));
  }
  const uint64_t capacity = CapacityOf(ring.data()), written = WrittenOf(ring.data());
  const uint64_t names = std::min<uint64_t>(Number<uint32_t>(ring.data(), offsetof(Header, names)),
                                            Header::kNames - 1);
  const uint64_t text = std::min<uint64_t>(
      Number<uint32_t>(ring.data(), offsetof(Header, text_bytes)), Header::kTextBytes);
  const RingCursor from = cursor.made == MadeOf(ring.data()) ? cursor : RingCursor{};
  Counts counts;
  counts.first_record =
      std::max(std::min(from.records, written), written - std::min(written, capacity));
  counts.records = written - counts.first_record;
  counts.first_name = std::min(from.names, names);
  counts.names = names - counts.first_name;
  counts.first_text = std::min(from.text, text);
  counts.text = text - counts.first_text;

  std::string out;
  out.reserve(counts.bytes());
  out.append(reinterpret_cast<const char*>(&counts), sizeof(counts));
  out.append(ring, 0, kNumbersBytes);
  // Names are numbered from 1.
  out.append(ring, offsetof(Header, name) + (counts.first_name + 1) * Header::kNameBytes,
             counts.names * Header::kNameBytes);
  out.append(ring, offsetof(Header, text) + counts.first_text, counts.text);
  const uint64_t written_after = WrittenNow(path, written);
  for (uint64_t record = counts.first_record; record < written; ++record) {
    const size_t at = Header::kBytes + (record & (capacity - 1)) * sizeof(RecordSlot);
    out.append(ring, at, sizeof(RecordSlot));
    if (record + capacity < written_after) {
      std::memset(out.data() + out.size() - sizeof(RecordSlot), 0, sizeof(RecordSlot));
    }
  }
  return Pack(out);
}

RingCopy::RingCopy(RingCopy&& other) noexcept
    : prefix_(other.prefix_),
      path_(std::move(other.path_)),
      cursor_(other.cursor_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_) {}

RingCopy::~RingCopy() { Unmap(); }

void RingCopy::Unmap() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  memory_ = nullptr;
}

absl::Status RingCopy::Map(uint64_t made, uint64_t capacity) {
  const std::string path = absl::StrCat(prefix_, "-", made, ".weft");
  const std::string doing = absl::StrCat("make the copy ", path, " of a ring of records");
  unlink(path.c_str());  // one that is mapped keeps its size
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, doing);
  const size_t bytes = RingBytes(capacity);
  int error = TakeRoom(fd, bytes);
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error != 0) {
    unlink(path.c_str());
    return ErrnoStatus(error, doing);
  }
  Unmap();
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
  path_ = path;
  cursor_ = {.made = made};
  return absl::OkStatus();
}

absl::Status RingCopy::Apply(absl::string_view packed) {
  WEFT_ASSIGN_OR_RETURN(const std::string changes, Unpack(packed));
  if (changes.size() < sizeof(Counts) + kNumbersBytes) return NoChanges("it is too short");
  Counts counts;
  std::memcpy(&counts, changes.data(), sizeof(counts));
  const char* const numbers = changes.data() + sizeof(counts);
  const uint64_t capacity = CapacityOf(numbers), made = MadeOf(numbers);
  if (counts.magic != Header::kMagic || Number<uint64_t>(numbers, 0) != Header::kMagic) {
    return NoChanges("it is of another version of Weft");
  }
  // Each bound before it is multiplied or added.
  if (!IsCapacity(capacity) || counts.records > capacity || counts.names >= Header::kNames ||
      counts.text > Header::kTextBytes || counts.bytes() != changes.size()) {
    return NoChanges(absl::StrCat("its sizes do not fit (", counts.records, " records of ",
                                  capacity, ", ", counts.names, " names, ", counts.text,
                                  " bytes of text, ", changes.size(), " in all)"));
  }
  const bool is_same = memory_ != nullptr && made == cursor_.made;
  const RingCursor from = is_same ? cursor_ : RingCursor{.made = made};
  const uint64_t written = WrittenOf(numbers);
  if (counts.first_name != from.names || counts.first_name + counts.names >= Header::kNames ||
      counts.first_text != from.text || counts.first_text + counts.text > Header::kTextBytes ||
      counts.first_record < from.records || counts.first_record > written ||
      written - counts.first_record != counts.records ||
      (is_same && bytes_ != RingBytes(capacity))) {
    return NoChanges("it does not follow on what is here");
  }
  if (!is_same) WEFT_RETURN_IF_ERROR(Map(made, capacity));

  const char* at = numbers + kNumbersBytes;
  std::memcpy(memory_ + offsetof(Header, name) + (counts.first_name + 1) * Header::kNameBytes, at,
              counts.names * Header::kNameBytes);
  at += counts.names * Header::kNameBytes;
  std::memcpy(memory_ + offsetof(Header, text) + counts.first_text, at, counts.text);
  at += counts.text;
  for (uint64_t record = counts.first_record; record < written; ++record) {
    std::memcpy(memory_ + Header::kBytes + (record & (capacity - 1)) * sizeof(RecordSlot), at,
                sizeof(RecordSlot));
    at += sizeof(RecordSlot);
  }
  std::memcpy(memory_, numbers, kNumbersBytes);
  cursor_.records = written;
  cursor_.names = counts.first_name + counts.names;
  cursor_.text = counts.first_text + counts.text;
  // What was being added while the agent copied: as many as came.
  const auto names = static_cast<uint32_t>(cursor_.names);
  const auto text = static_cast<uint32_t>(cursor_.text);
  std::memcpy(memory_ + offsetof(Header, names), &names, sizeof(names));
  std::memcpy(memory_ + offsetof(Header, text_bytes), &text, sizeof(text));
  return absl::OkStatus();
}

}  // namespace weft::observe
