// The memory of one link: a sealed memfd, mapped by both sides and by no other process, without a
// name.
//
//   0      SegmentHeader: magic, version, geometry; written once by the connector
//   4096   lines: reader and writer line of the forward ring, then of the backward ring
//   8192   forward cells (sender to receiver), backward cells, arena of payload
#ifndef WEFT_NET_SHM_SEGMENT_H_
#define WEFT_NET_SHM_SEGMENT_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "net/shm/ring.h"
#include "net/shm/unix_socket.h"

namespace weft::net::shm {

inline constexpr uint64_t kSegmentMagic = 0x31304d4853545657;  // "WVTSHM01"
inline constexpr uint64_t kPageBytes = 4096;

struct Geometry {
  uint32_t forward_cells = 256;   // powers of two, 16..65536
  uint32_t backward_cells = 256;  // as many clear-to-sends fit before they queue at the receiver
  uint64_t piece_bytes = 0;       // the largest piece; a multiple of 64
  uint64_t arena_bytes = 0;       // a multiple of 64, >= 2 pieces
  bool operator==(const Geometry&) const = default;
};

// kInvalidArgument, with the field, for one that this version does not allow.
absl::Status CheckGeometry(const Geometry& geometry);

struct SegmentHeader {
  uint64_t magic = kSegmentMagic;
  uint32_t version = 0;  // kWireVersion
  uint32_t zero = 0;
  Geometry geometry;
};

// A shared mapping of a whole descriptor. Move-only.
class Mapping {
 public:
  Mapping() = default;
  static absl::StatusOr<Mapping> Map(int fd, uint64_t bytes,
                                     int protection = PROT_READ | PROT_WRITE);
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A memfd of `bytes` zeroes that can neither shrink nor grow any more.
absl::StatusOr<FileDescriptor> CreateSealedMemory(const char* name, uint64_t bytes);
// That `fd`, which a peer passed, is one; returns its size. A mapping of it can never fault.
absl::StatusOr<uint64_t> CheckSealedMemory(int fd);

class Segment {
 public:
  Segment() = default;
  // Creates and maps one; `*fd` is for the peer and may be closed once passed.
  static absl::StatusOr<Segment> Create(const Geometry& geometry, FileDescriptor* fd);
  // Maps what a peer passed, after every check that it can fail.
  static absl::StatusOr<Segment> Adopt(int fd);

  bool mapped() const { return mapping_.data() != nullptr; }
  const Geometry& geometry() const { return geometry_; }
  ReaderLine* forward_reader() const { return Line<ReaderLine>(0); }
  WriterLine* forward_writer() const { return Line<WriterLine>(1); }
  ReaderLine* backward_reader() const { return Line<ReaderLine>(2); }
  WriterLine* backward_writer() const { return Line<WriterLine>(3); }
  Cell* forward_cells() const { return At<Cell>(2 * kPageBytes); }
  Cell* backward_cells() const { return forward_cells() + geometry_.forward_cells; }
  std::byte* arena() const {
    return reinterpret_cast<std::byte*>(backward_cells() + geometry_.backward_cells);
  }

 private:
  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }
  template <typename T>
  T* Line(int index) const {
    return At<T>(kPageBytes + static_cast<uint64_t>(index) * 2 * kCellBytes);
  }
  Mapping mapping_;
  Geometry geometry_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_SEGMENT_H_
