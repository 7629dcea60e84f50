#include "trainer/kernels/decode.h"

#include "trainer/kernels/instruction_sets.h"

namespace weft::train::kernels {

namespace avx512bf16 {
DecodeTable Decode();
}
namespace avx512 {
DecodeTable Decode();
}
namespace avx2 {
DecodeTable Decode();
}
namespace plain {
DecodeTable Decode();
}

std::vector<DecodeTable> DecodeTables() {
  return TablesHere<DecodeTable>(WEFT_KERNEL_SETS(Decode));
}

const DecodeTable& Decoding() {
  static const DecodeTable table = DecodeTables().front();
  return table;
}

}  // namespace weft::train::kernels
