// The kernels, compiled with AVX2 and F16C (flags in CMakeLists.txt).
#include "collectives/reduce_kernels.h"

namespace weft::collectives::internal {

void FillAvx2(KernelTable& table) { Fill(table); }

}  // namespace weft::collectives::internal
