// Takes datagrams out of UDP sockets, several a call, the chunks of large ones straight to where
// they belong.
//
// Small ones, and whatever has no place yet, are read into a buffer that stays in the cache, up to
// kReceives of them (or of what the kernel coalesced) a call. Where the last ones were large, the
// next is looked at first (MSG_PEEK, its header alone), and if its owner has a place for its chunk,
// and for those behind it of what the kernel coalesced, headers and chunks are read apart: no chunk
// is copied twice. The look costs a call, a few percent of what copying 64 KiB costs.
//
// Chunks are read to their places before their checksums are known to be right, but only to places
// of chunks that are missing: a damaged one is overwritten by the next that comes for it. What
// turns out to be another chunk than was expected there is moved.
//
// Not thread-safe.
#ifndef WEFT_NET_MULTIPATH_UDP_READER_H_
#define WEFT_NET_MULTIPATH_UDP_READER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "net/multipath/udp/datagram.h"

namespace weft::net::multipath {

// A datagram that arrived. `header`: all of it but a chunk.
struct Received {
  absl::Span<const std::byte> header, chunk;
  bool marked = false;     // ECN: congestion experienced
  absl::Time now;          // when it was read
  absl::Time at;           // when the kernel got it
  bool is_placed = false;  // the chunk is where PlaceFor() said
};

// A datagram that was read as a whole.
Received ReceivedOf(absl::Span<const std::byte> datagram, bool marked, absl::Time now,
                    absl::Time at);

// The places that one link has for chunks.
class ChunkPlaces {
 public:
  virtual ~ChunkPlaces() = default;
  // Where a missing chunk of so many bytes belongs; null: not missing, or it is not stored as it
  // is.
  virtual std::byte* PlaceFor(const ChunkAddress& chunk, size_t bytes) = 0;
};

class DatagramSink {
 public:
  virtual ~DatagramSink() = default;
  // The places of a data packet, by its envelope and header; null: not authentic, or for no link.
  virtual ChunkPlaces* PlacesOf(absl::Span<const std::byte> header) = 0;
  virtual void Take(const Received& datagram) = 0;
};

// A system call's outcome.
struct ReadResult {
  bool has_more = false;  // there may be more
  int calls = 0;
};

class DatagramReader {
 public:
  static constexpr size_t kReceives = 4;
  static constexpr size_t kReceiveBytes = 65'536;  // one datagram, or what was coalesced

  explicit DatagramReader(DatagramSink& sink);

  // `is_bulk` belongs to the socket: what came last was large.
  ReadResult Read(int fd, bool& is_bulk);

 private:
  static constexpr size_t kSegmentsMax = 128;  // of what the kernel coalesces
  struct Slot {
    size_t bytes;  // of the chunk
    std::byte* place;
    bool has_place;
  };

  ReadResult ReadCopied(int fd, bool& is_bulk);
  // False: it is not for reading apart.
  bool PlanPlaces(size_t total, size_t segment);
  ReadResult ReadPlaced(int fd, size_t total, size_t segment);
  void TakePlaced(size_t count, size_t step, Received& received);
  void TakeWhole(absl::Span<const std::byte> datagram, const Received& notes) {
    sink_.Take(ReceivedOf(datagram, notes.marked, notes.now, notes.at));
  }

  DatagramSink& sink_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* buffer_;  // kReceives receives, aligned to 64
  std::array<std::byte, kBeforeChunk> peeked_{};
  std::array<std::array<std::byte, kBeforeChunk>, kSegmentsMax> headers_{};
  std::array<Slot, kSegmentsMax> slots_{};
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_READER_H_
