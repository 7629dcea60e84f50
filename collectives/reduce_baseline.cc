// The kernels, compiled for any machine of the architecture.
#include "collectives/reduce_kernels.h"

namespace weft::collectives::internal {

void FillBaseline(KernelTable& table) { Fill(table); }

}  // namespace weft::collectives::internal
