// The version of Weft.
#ifndef WEFT_BASE_VERSION_H_
#define WEFT_BASE_VERSION_H_

namespace weft {

const char* Version();  // "0.1.0"

}  // namespace weft

#endif  // WEFT_BASE_VERSION_H_
