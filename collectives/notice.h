// What endpoints tell each other beside messages: notices of 4 words of 32 bits and text,
//
//   [kind, group id, third, fourth] text
//     ask     sequence, 0
//     answer  sequence, an Answer::State; text: the descriptor, or the number of the next call
//     abort   0, absl's status code; text: what failed (base/failure.h), a line feed, the message
//     seek    tag, how many receives were posted           (any_source.h)
//     offer   tag, the same number again
//     drain   sequence or tag, 1 for a message; text: what the sender has posted (drain.h)
//     goodbye how many collectives the sender has called and finished, 0: it has left the group
#ifndef WEFT_COLLECTIVES_NOTICE_H_
#define WEFT_COLLECTIVES_NOTICE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "net/transport.h"

namespace weft::collectives {

enum NoticeKind : uint32_t {
  kAsk = 1,
  kAnswer = 2,
  kAbort = 3,
  kSeek = 4,
  kOffer = 5,
  kGoodbye = 6,
  kDrain = 7
};

inline std::string Pack(NoticeKind kind, uint32_t group, uint32_t third, uint32_t fourth,
                        absl::string_view text = "") {
  const uint32_t words[4] = {kind, group, third, fourth};
  std::string bytes(reinterpret_cast<const char*>(words), sizeof(words));
  bytes.append(text.data(), std::min(text.size(), net::kNoticeBytesMax - sizeof(words)));
  return bytes;
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_NOTICE_H_
