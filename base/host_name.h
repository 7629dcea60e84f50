// The name of the host that this process runs on.
#ifndef WEFT_BASE_HOST_NAME_H_
#define WEFT_BASE_HOST_NAME_H_

#include <string>

namespace weft {

// As the kernel has it and `hostname` prints it: at most 64 bytes; with the domain where it was set
// with the domain. A record's field of 64 bytes with the final zero holds the first 63.
std::string HostName();

}  // namespace weft

#endif  // WEFT_BASE_HOST_NAME_H_
