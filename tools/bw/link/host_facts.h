// What a rank knows of the host it is on, once: name, interface, link speed, copy speed.
#ifndef WEFT_TOOLS_BW_LINK_HOST_FACTS_H_
#define WEFT_TOOLS_BW_LINK_HOST_FACTS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tools/bw/link/limit.h"

namespace weft::link_bw {

// Sets host, device, link and copy. `address`: of the transport; the interface that has it is the
// device. `sys`: where /sys is.
void LearnHost(absl::string_view address, RankUse& use, const std::string& sys = "/sys");

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_HOST_FACTS_H_
