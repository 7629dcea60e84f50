# weft_library(NAME SOURCES ... [DEPS ...])   static library `weft_NAME`, alias weft::NAME
# weft_program(NAME SOURCES ... [DEPS ...])   bin/NAME
# weft_test(NAME TIER unit|seeds|local|fabric|roce|gpu SOURCES ... [DEPS ...] [TIMEOUT s] [SERIAL])
#   A GoogleTest program bin/tests/NAME, one ctest entry, labelled with its tier.
# DEPS are full target names. With USES_TORCH the precompiled header of torch/torch.h is reused.

add_library(weft_torch_pch STATIC EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/cmake/torch_pch.cc)
if(WEFT_TORCH)
  target_link_libraries(weft_torch_pch PUBLIC Torch::cpu weft_flags)
  target_precompile_headers(weft_torch_pch PRIVATE <torch/torch.h>)
endif()

macro(weft_common NAME)
  target_link_libraries(${NAME} PUBLIC weft_flags ${ARG_DEPS})
  if(ARG_USES_TORCH)
    target_link_libraries(${NAME} PUBLIC Torch::cpu)
    target_precompile_headers(${NAME} REUSE_FROM weft_torch_pch)
    # A precompiled header serves only where it was made with the same options: -fPIC, not a program's -fPIE.
    set_target_properties(${NAME} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${NAME} PRIVATE -fPIC)
  endif()
endmacro()

function(weft_library NAME)
  cmake_parse_arguments(ARG "USES_TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(weft_${NAME} STATIC ${ARG_SOURCES})
  add_library(weft::${NAME} ALIAS weft_${NAME})
  weft_common(weft_${NAME})
endfunction()

function(weft_program NAME)
  cmake_parse_arguments(ARG "USES_TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  weft_common(${NAME})
endfunction()

function(weft_test NAME)
  cmake_parse_arguments(ARG "USES_TORCH;SERIAL" "TIER;TIMEOUT" "SOURCES;DEPS;ARGS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  weft_common(${NAME})
  target_link_libraries(${NAME} PUBLIC GTest::gmock GTest::gtest GTest::gtest_main)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin/tests)
  add_test(NAME ${ARG_TIER}.${NAME} COMMAND ${NAME} ${ARG_ARGS})
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
