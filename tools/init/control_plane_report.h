// What weft-init says of a simulated control plane.
#ifndef WEFT_TOOLS_INIT_CONTROL_PLANE_REPORT_H_
#define WEFT_TOOLS_INIT_CONTROL_PLANE_REPORT_H_

#include <nlohmann/json.hpp>

#include "tools/init/control_plane.h"

namespace weft::init {

nlohmann::ordered_json PrintControlPlane(const Options& options, const ControlPlane& plane);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_CONTROL_PLANE_REPORT_H_
