#include "base/version.h"

namespace weft {

const char* Version() { return WEFT_VERSION; }

}  // namespace weft
