#include "net/multipath/udp/reader.h"

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <optional>

namespace weft::net::multipath {
namespace {

constexpr uint8_t kCongestion = 3, kEcnMask = 3;
constexpr size_t kPlaceBytes = 4096;  // smaller ones are not worth a look

// Behind what has no place lies, twice as far, what is set aside.
static_assert(DatagramReader::kReceives >= 4);

struct alignas(cmsghdr) Control : std::array<char, 128> {};

absl::Time TimeOf(const timespec& time) { return absl::TimeFromTimespec(time); }

struct Clocks {
  absl::Time now;         // the clock of everything else
  absl::Duration to_now;  // what to add to the kernel's stamps (CLOCK_REALTIME)
};
Clocks ReadClocks() {
  timespec real{}, steady{};
  clock_gettime(CLOCK_REALTIME, &real);
  clock_gettime(CLOCK_MONOTONIC, &steady);
  absl::Time now = TimeOf(steady);
  return {now, now - TimeOf(real)};
}

// What the kernel says of one receive.
struct Notes {
  size_t segment = 0;  // bytes; 0: one datagram
  bool marked = false;
  absl::Time stamp = absl::InfiniteFuture();
};

Notes NotesOf(msghdr& message) {
  Notes notes;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    const unsigned char* data = CMSG_DATA(one);
    if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
      int size = 0;
      std::memcpy(&size, data, sizeof(size));
      notes.segment = static_cast<size_t>(std::max(size, 0));
    } else if (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_TOS) {
      notes.marked = (*data & kEcnMask) == kCongestion;
    } else if (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_TCLASS) {
      int traffic_class = 0;
      std::memcpy(&traffic_class, data, sizeof(traffic_class));
      notes.marked = (traffic_class & kEcnMask) == kCongestion;
    } else if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_TIMESTAMPNS) {
      timespec time{};
      std::memcpy(&time, data, sizeof(time));
      notes.stamp = TimeOf(time);
    }
  }
  return notes;
}

void Note(const Notes& notes, const Clocks& clocks, Received& received) {
  received.marked = notes.marked;
  received.now = clocks.now;
  received.at = std::min(clocks.now, notes.stamp + clocks.to_now);
}

size_t RoundedUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Received ReceivedOf(absl::Span<const std::byte> datagram, bool marked, absl::Time now,
                    absl::Time at) {
  size_t cut = AddressOf(datagram) ? kBeforeChunk : datagram.size();
  return {.header = datagram.subspan(0, cut),
          .chunk = datagram.subspan(cut),
          .marked = marked,
          .now = now,
          .at = at};
}

DatagramReader::DatagramReader(DatagramSink& sink)
    : sink_(sink),
      memory_(std::make_unique_for_overwrite<std::byte[]>(kReceives * kReceiveBytes + 64)) {
  auto address = reinterpret_cast<uintptr_t>(memory_.get());
  buffer_ = memory_.get() + ((64 - address % 64) % 64);
}

ReadResult DatagramReader::Read(int fd, bool& is_bulk) {
  if (!is_bulk) return ReadCopied(fd, is_bulk);
  iovec vector{peeked_.data(), peeked_.size()};
  Control control;
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t total = recvmsg(fd, &message, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  if (total < 0) return {errno == EINTR, 1};
  auto bytes = static_cast<size_t>(total);
  size_t segment = NotesOf(message).segment;
  if (segment == 0) segment = bytes;
  ReadResult result = bytes >= kPlaceBytes && PlanPlaces(bytes, segment)
                          ? ReadPlaced(fd, bytes, segment)
                          : ReadCopied(fd, is_bulk);
  ++result.calls;
  return result;
}

bool DatagramReader::PlanPlaces(size_t total, size_t segment) {
  size_t count = segment > kBeforeChunk ? (total + segment - 1) / segment : 0;
  if (count == 0 || count > kSegmentsMax) return false;
  std::optional<ChunkAddress> address = AddressOf(peeked_);
  ChunkPlaces* places = address ? sink_.PlacesOf(peeked_) : nullptr;
  if (places == nullptr) return false;
  std::byte* spare = buffer_;
  for (size_t i = 0; i < count; ++i) {
    size_t size = std::min(segment, total - i * segment);
    Slot& slot = slots_[i];
    slot.bytes = size > kBeforeChunk ? size - kBeforeChunk : 0;
    slot.place = slot.bytes > 0 ? places->PlaceFor(*address, slot.bytes) : nullptr;
    slot.has_place = slot.place != nullptr;
    if (i == 0 && !slot.has_place) return false;
    if (!slot.has_place) slot.place = spare;
    spare += RoundedUp(size);
    address->offset += segment - kBeforeChunk;
  }
  return true;
}

ReadResult DatagramReader::ReadPlaced(int fd, size_t total, size_t segment) {
  size_t count = (total + segment - 1) / segment;
  std::array<iovec, 2 * kSegmentsMax> vectors;
  for (size_t i = 0; i < count; ++i) {
    size_t size = std::min(segment, total - i * segment);
    vectors[2 * i] = {headers_[i].data(), std::min(size, kBeforeChunk)};
    vectors[2 * i + 1] = {slots_[i].place, slots_[i].bytes};
  }
  Control control;
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = 2 * count;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT);
  if (got < 0) return {errno == EINTR, 1};
  Notes notes = NotesOf(message);
  // Another than was looked at, whose checksum the kernel has found wrong since: lost with it.
  bool is_same = static_cast<size_t>(got) == total && (message.msg_flags & MSG_TRUNC) == 0 &&
                 (notes.segment == 0 ? total : notes.segment) == segment &&
                 std::memcmp(headers_[0].data(), peeked_.data(), peeked_.size()) == 0;
  if (!is_same) return {true, 1};
  Received received;
  Note(notes, ReadClocks(), received);
  size_t last = total - (count - 1) * segment;
  if (last < kBeforeChunk) {  // too short for data: whole as it is
    TakePlaced(count - 1, segment - kBeforeChunk, received);
    TakeWhole(absl::MakeConstSpan(headers_[count - 1].data(), last), received);
  } else {
    TakePlaced(count, segment - kBeforeChunk, received);
  }
  return {true, 1};
}

// What is not what its place was meant for is set aside before any of it is handed on: its place
// may be that of another.
void DatagramReader::TakePlaced(size_t count, size_t step, Received& received) {
  const ChunkAddress first = *AddressOf(peeked_);
  std::array<bool, kSegmentsMax> is_misplaced;
  for (size_t i = 0; i < count; ++i) {
    const Slot& slot = slots_[i];
    std::optional<ChunkAddress> address = AddressOf(headers_[i]);
    is_misplaced[i] = !slot.has_place || !address || address->message != first.message ||
                      address->offset != first.offset + i * step;
    if (!is_misplaced[i]) continue;
    // With its header in front of it again.
    std::byte* whole = buffer_ + 2 * kReceiveBytes + i * RoundedUp(step + kBeforeChunk);
    std::memcpy(whole + kBeforeChunk, slot.place, slot.bytes);
    std::memcpy(whole, headers_[i].data(), kBeforeChunk);
  }
  for (size_t i = 0; i < count; ++i) {
    if (is_misplaced[i]) continue;
    received.header = headers_[i];
    received.chunk = absl::MakeConstSpan(slots_[i].place, slots_[i].bytes);
    received.is_placed = true;
    sink_.Take(received);
  }
  for (size_t i = 0; i < count; ++i) {
    if (!is_misplaced[i]) continue;
    const std::byte* whole = buffer_ + 2 * kReceiveBytes + i * RoundedUp(step + kBeforeChunk);
    TakeWhole(absl::MakeConstSpan(whole, kBeforeChunk + slots_[i].bytes), received);
  }
}

ReadResult DatagramReader::ReadCopied(int fd, bool& is_bulk) {
  std::array<mmsghdr, kReceives> calls{};
  std::array<iovec, kReceives> vectors;
  std::array<Control, kReceives> controls;
  for (size_t i = 0; i < kReceives; ++i) {
    vectors[i] = {buffer_ + i * kReceiveBytes, kReceiveBytes};
    calls[i].msg_hdr.msg_iov = &vectors[i];
    calls[i].msg_hdr.msg_iovlen = 1;
    calls[i].msg_hdr.msg_control = controls[i].data();
    calls[i].msg_hdr.msg_controllen = controls[i].size();
  }
  int got = recvmmsg(fd, calls.data(), kReceives, MSG_DONTWAIT, nullptr);
  if (got <= 0) return {got < 0 && errno == EINTR, 1};
  is_bulk = false;
  Clocks clocks = ReadClocks();
  for (size_t i = 0; i < static_cast<size_t>(got); ++i) {
    mmsghdr& call = calls[i];
    Notes notes = NotesOf(call.msg_hdr);
    Received received;
    Note(notes, clocks, received);
    const std::byte* data = buffer_ + i * kReceiveBytes;
    size_t left = (call.msg_hdr.msg_flags & MSG_TRUNC) != 0 ? 0 : call.msg_len;
    is_bulk |= left >= kPlaceBytes;
    size_t segment = notes.segment > 0 ? notes.segment : left;
    if (left == 0) TakeWhole({}, received);
    for (size_t size = 0; left > 0; left -= size, data += size) {
      size = std::min(segment, left);
      TakeWhole(absl::MakeConstSpan(data, size), received);
    }
  }
  return {static_cast<size_t>(got) == kReceives, 1};
}

}  // namespace weft::net::multipath
