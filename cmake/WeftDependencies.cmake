# Every outside library is found here and nowhere else. tools/dev setup installs them.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(toml11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(pugixml REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(HIREDIS REQUIRED IMPORTED_TARGET hiredis)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(UCX IMPORTED_TARGET ucx)  # without it there is no transport of that name
pkg_check_modules(IBVERBS IMPORTED_TARGET libibverbs)  # the same for verbs
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
if(WEFT_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
  include(GoogleTest)
endif()

# LibTorch from the PyPI wheel. Its own TorchConfig.cmake insists on a CUDA toolkit, which a machine
# without a GPU does not have, so the two libraries that matter are declared here.
if(WEFT_TORCH)
  set(WEFT_LIBTORCH ${WEFT_DEPS_DIR}/libtorch CACHE PATH "The unpacked torch wheel's torch/ folder")
  if(NOT EXISTS ${WEFT_LIBTORCH}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch is not in ${WEFT_LIBTORCH}: run tools/dev setup, or give -DWEFT_TORCH=OFF")
  endif()
  add_library(Torch::c10 SHARED IMPORTED)
  set_target_properties(Torch::c10 PROPERTIES
    IMPORTED_LOCATION ${WEFT_LIBTORCH}/lib/libc10.so
    INTERFACE_INCLUDE_DIRECTORIES
      "${WEFT_LIBTORCH}/include;${WEFT_LIBTORCH}/include/torch/csrc/api/include"
    # The wheel's c10d headers compile their transports only with these.
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D")
  add_library(Torch::cpu SHARED IMPORTED)
  set_target_properties(Torch::cpu PROPERTIES
    IMPORTED_LOCATION ${WEFT_LIBTORCH}/lib/libtorch_cpu.so
    INTERFACE_LINK_LIBRARIES "Torch::c10;Threads::Threads")
  # libcudart and libcupti, which libtorch_cpu.so needs to load, lie beside it (tools/dev setup); found by
  # the loader through libtorch's own run path, and by the linker through this.
  target_link_options(Torch::cpu INTERFACE -Wl,-rpath-link,${WEFT_LIBTORCH}/lib)
endif()

if(WEFT_CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
