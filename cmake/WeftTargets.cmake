# weft_library(NAME SOURCES ... [DEPS ...])   static library `weft_NAME`, alias weft::NAME
# weft_program(NAME SOURCES ... [DEPS ...])   bin/NAME
# weft_test(NAME TIER unit|seeds|local|fabric|nccl|torch|roce|gpu|launch|observe SOURCES ... [DEPS ...] [TIMEOUT s] [SERIAL])
#   A GoogleTest program bin/tests/NAME, one ctest entry, labelled with its tier; built by target TIER_tests, too.
# DEPS are full target names. With USES_TORCH the precompiled header is that of torch/torch.h.

# weft_precompiled_header(NAME HEADERS ... [DEPS ...])   to be reused as weft_NAME_pch
function(weft_precompiled_header NAME)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  add_library(weft_${NAME}_pch STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
  target_link_libraries(weft_${NAME}_pch PUBLIC weft_flags ${ARG_DEPS})
  target_precompile_headers(weft_${NAME}_pch PRIVATE ${ARG_HEADERS})
endfunction()

set(WEFT_PCH_DEPS absl::status absl::statusor absl::strings absl::str_format absl::time absl::span)
weft_precompiled_header(common HEADERS [["cmake/pch.h"]] DEPS ${WEFT_PCH_DEPS})
if(WEFT_TESTS)
  weft_precompiled_header(test HEADERS [["cmake/test_pch.h"]] DEPS ${WEFT_PCH_DEPS} GTest::gmock)
endif()
if(WEFT_TORCH)
  weft_precompiled_header(torch HEADERS <torch/torch.h> DEPS Torch::cpu)
endif()

macro(weft_common NAME PCH)
  target_link_libraries(${NAME} PUBLIC weft_flags ${ARG_DEPS})
  if(ARG_USES_TORCH)
    target_link_libraries(${NAME} PUBLIC Torch::cpu)
    target_precompile_headers(${NAME} REUSE_FROM weft_torch_pch)
  else()
    target_precompile_headers(${NAME} REUSE_FROM weft_${PCH}_pch)
  endif()
  # A precompiled header serves only where it was made with the same options: -fPIC, not a program's -fPIE.
  set_target_properties(${NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${NAME} PRIVATE -fPIC)
endmacro()

function(weft_library NAME)
  cmake_parse_arguments(ARG "USES_TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(weft_${NAME} STATIC ${ARG_SOURCES})
  add_library(weft::${NAME} ALIAS weft_${NAME})
  weft_common(weft_${NAME} common)
endfunction()

function(weft_program NAME)
  cmake_parse_arguments(ARG "USES_TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  weft_common(${NAME} common)
endfunction()

function(weft_test NAME)
  cmake_parse_arguments(ARG "USES_TORCH;SERIAL" "TIER;TIMEOUT" "SOURCES;DEPS;ARGS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  weft_common(${NAME} test)
  target_link_libraries(${NAME} PUBLIC GTest::gmock GTest::gtest GTest::gtest_main)
  # GoogleTest's macros take longer to optimise than to run.
  target_compile_options(${NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  add_test(NAME ${ARG_TIER}.${NAME} COMMAND ${NAME} ${ARG_ARGS})
  if(NOT TARGET ${ARG_TIER}_tests)
    add_custom_target(${ARG_TIER}_tests)
  endif()
  add_dependencies(${ARG_TIER}_tests ${NAME})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(WEFT_SANITIZE)  # ten times as slow, and a limit is there for hangs alone
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  set_tests_properties(${ARG_TIER}.${NAME} PROPERTIES
    LABELS ${ARG_TIER} TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL "${ARG_SERIAL}"
    ENVIRONMENT "WEFT_BIN=${CMAKE_BINARY_DIR}/bin;WEFT_SOURCE=${CMAKE_SOURCE_DIR}")
endfunction()
