// What every libweft-cuda.so of a test begins with: a table of this version, without calls.
#ifndef WEFT_TESTS_COLLECTIVES_CUDA_SCRIPTED_TABLE_H_
#define WEFT_TESTS_COLLECTIVES_CUDA_SCRIPTED_TABLE_H_

#include "collectives/cuda/device_table.h"

namespace weft {

inline WeftDeviceTable ScriptedTable() {
  WeftDeviceTable table{};
  table.version = kWeftDeviceTableVersion;
  table.size = sizeof(table);
  table.cuda_version = 13000;
  table.nccl_version = 22809;
  return table;
}

}  // namespace weft

#endif  // WEFT_TESTS_COLLECTIVES_CUDA_SCRIPTED_TABLE_H_
