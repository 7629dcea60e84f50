#include "net/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/memory_file.h"
#include "base/status.h"
#include "net/handshake.h"

namespace weft::net::shm {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kPieceBytesMax = uint64_t{1} << 26;
constexpr uint64_t kArenaBytesMax = uint64_t{1} << 36;

uint64_t SegmentBytes(const Geometry& geometry) {
  return 2 * kPageBytes +
         kCellBytes * (uint64_t{geometry.forward_cells} + geometry.backward_cells) +
         geometry.arena_bytes;
}

bool CellsOk(uint32_t cells) { return std::has_single_bit(cells) && cells >= 16 && cells <= 65536; }

}  // namespace

absl::Status CheckGeometry(const Geometry& geometry) {
  if (!CellsOk(geometry.forward_cells) || !CellsOk(geometry.backward_cells)) {
    return absl::InvalidArgumentError(absl::StrCat("shm segment: ", geometry.forward_cells, " and ",
                                                   geometry.backward_cells,
                                                   " cells; powers of two from 16 to 65536 are "
                                                   "allowed"));
  }
  if (geometry.piece_bytes == 0 || geometry.piece_bytes % 64 != 0 ||
      geometry.piece_bytes > kPieceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm segment: pieces of ", geometry.piece_bytes, " bytes"));
  }
  if (geometry.arena_bytes % 64 != 0 || geometry.arena_bytes / 2 < geometry.piece_bytes ||
      geometry.arena_bytes > kArenaBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("shm segment: an arena of ",
                                                   geometry.arena_bytes, " bytes for pieces of ",
                                                   geometry.piece_bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Mapping> Mapping::Map(int fd, uint64_t bytes, int protection) {
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", bytes, " shared bytes"));
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.bytes_ = bytes;
  return mapping;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

absl::StatusOr<FileDescriptor> CreateSealedMemory(const char* name, uint64_t bytes) {
  FileDescriptor fd = MakeMemoryFile(name);
  if (fd.get() < 0) return ErrnoStatus(errno, "create shared memory (memfd)");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("size shared memory to ", bytes, " bytes"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus(errno, "seal shared memory");
  return fd;
}

absl::StatusOr<uint64_t> CheckSealedMemory(int fd) {
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || (seals & F_SEAL_GROW) == 0) {
    return absl::InvalidArgumentError("the shared memory that the peer passed is not sealed");
  }
  if ((seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError("the shared memory that the peer passed is read-only");
  }
  struct stat status {};
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "size of the peer's shared memory");
  return static_cast<uint64_t>(status.st_size);
}

absl::StatusOr<Segment> Segment::Create(const Geometry& geometry, FileDescriptor* fd) {
  WEFT_RETURN_IF_ERROR(CheckGeometry(geometry));
  WEFT_ASSIGN_OR_RETURN(*fd, CreateSealedMemory("weft-link", SegmentBytes(geometry)));
  Segment segment;
  WEFT_ASSIGN_OR_RETURN(segment.mapping_, Mapping::Map(fd->get(), SegmentBytes(geometry)));
  segment.geometry_ = geometry;
  SegmentHeader header;
  header.version = kWireVersion;
  header.geometry = geometry;
  std::memcpy(segment.mapping_.data(), &header, sizeof header);
  return segment;
}

absl::StatusOr<Segment> Segment::Adopt(int fd) {
  WEFT_ASSIGN_OR_RETURN(uint64_t bytes, CheckSealedMemory(fd));
  if (bytes < 2 * kPageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("shm segment: only ", bytes, " bytes"));
  }
  Segment segment;
  WEFT_ASSIGN_OR_RETURN(segment.mapping_, Mapping::Map(fd, bytes));
  SegmentHeader header;
  CopyOnce(&header, segment.mapping_.data(), sizeof header);
  if (header.magic != kSegmentMagic) {
    return absl::InvalidArgumentError("shm segment: wrong magic; no Weft process made it");
  }
  if (header.version != kWireVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shm segment: the peer speaks version ", header.version, ", this process ", kWireVersion));
  }
  WEFT_RETURN_IF_ERROR(CheckGeometry(header.geometry));
  if (bytes != SegmentBytes(header.geometry)) {
    return absl::InvalidArgumentError(absl::StrCat("shm segment: ", bytes,
                                                   " bytes, its geometry "
                                                   "needs ",
                                                   SegmentBytes(header.geometry)));
  }
  segment.geometry_ = header.geometry;
  return segment;
}

}  // namespace weft::net::shm
