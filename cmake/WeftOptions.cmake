# Language, warnings, sanitizers and output folders: everything that holds for every target.
option(WEFT_TESTS "Build the tests" ON)
option(WEFT_TORCH "Build what needs LibTorch: collectives/c10d, plugins/torch, trainer" ON)
option(WEFT_PLANNING "Build fabrics, planning and simulation, and their programs" ON)
option(WEFT_CUDA "Build the library of CUDA code (needs a CUDA toolkit)" OFF)
set(WEFT_SANITIZE "" CACHE STRING "Sanitizers, as for -fsanitize=: address,undefined or thread")
set(WEFT_DEPS_DIR ${CMAKE_SOURCE_DIR}/.deps CACHE PATH "Where tools/dev setup unpacks LibTorch")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# What a library offers to others says so itself.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -g1: line tables for stack traces at a third of -g's link time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")

find_program(WEFT_CCACHE ccache)
if(WEFT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${WEFT_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${WEFT_CCACHE})
endif()
find_program(WEFT_MOLD mold)
if(WEFT_MOLD)
  # mold 1.10 lets what becomes read-only begin at an empty .tbss. Behind .text that may be a page which no segment
  # has: the program then does not start. So segments begin on pages of their own.
  add_link_options(-fuse-ld=mold -Wl,-z,separate-loadable-segments)
endif()

add_library(weft_flags INTERFACE)
# The last four are wrong in GCC 12 about std::string where it comes from a precompiled header.
target_compile_options(weft_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers
  -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
target_include_directories(weft_flags INTERFACE ${CMAKE_SOURCE_DIR})
# As hiredis wants it; the same for all, as they share precompiled headers.
target_compile_definitions(weft_flags INTERFACE _FILE_OFFSET_BITS=64)

if(WEFT_SANITIZE)
  # GCC's -Wmaybe-uninitialized is wrong about instrumented code (its manual says so).
  add_compile_options(-fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${WEFT_SANITIZE})
  if(WEFT_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()
