// The kernels, compiled with AVX-512 F, BW, DQ and VL (flags in CMakeLists.txt).
#include "collectives/reduce_kernels.h"

namespace weft::collectives::internal {

void FillAvx512(KernelTable& table) { Fill(table); }

}  // namespace weft::collectives::internal
