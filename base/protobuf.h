// Writes messages in protobuf's wire format, field by field, without a schema or a library: for
// Perfetto's traces and TensorBoard's events. (protobuf.dev, "Encoding".)
#ifndef WEFT_BASE_PROTOBUF_H_
#define WEFT_BASE_PROTOBUF_H_

#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

class ProtobufWriter {
 public:
  void Varint(int field, uint64_t value) {
    Key(field, 0);
    Number(value);
  }
  void Double(int field, double value) {
    Key(field, 1);
    Fixed(std::bit_cast<uint64_t>(value), 8);
  }
  void Fixed64(int field, uint64_t value) {
    Key(field, 1);
    Fixed(value, 8);
  }
  void Float(int field, float value) {
    Key(field, 5);
    Fixed(std::bit_cast<uint32_t>(value), 4);
  }
  // A string, bytes, or another message.
  void Bytes(int field, absl::string_view value) {
    Key(field, 2);
    Number(value.size());
    text_.append(value.data(), value.size());
  }
  void Message(int field, const ProtobufWriter& message) { Bytes(field, message.text_); }

  const std::string& text() const { return text_; }

 private:
  void Key(int field, uint32_t type) { Number(static_cast<uint64_t>(field) << 3 | type); }
  void Number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  void Fixed(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text_ += static_cast<char>(value >> (8 * i));
  }

  std::string text_;
};

}  // namespace weft

#endif  // WEFT_BASE_PROTOBUF_H_
