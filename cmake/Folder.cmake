# headstart_folder(NAME dep...): the one library of src/NAME, and NAME_test from its *_test.cc.
# Files that end in main.cc are programs of their own.
# The include edges that ARCHITECTURE.md allows are exactly the deps given here.
include(GoogleTest)

function(headstart_folder name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$|main\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(hs_${name} STATIC ${sources})
  target_include_directories(hs_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  target_compile_options(hs_${name} PRIVATE ${HEADSTART_WARNINGS})
  target_link_libraries(hs_${name} PUBLIC ${ARGN})
  if(HEADSTART_TESTS AND tests)
    headstart_test(${name}_test SOURCES ${tests} DEPS hs_${name})
  endif()
endfunction()

# What ./run test runs again under the sanitizers; the other tests need the optimised build.
add_custom_target(sanitized_tests)

# What ./run test --all runs under an emulator in the tree of another CPU, where their label is
# `emulated`: what has a source or a compiled form of its own for each CPU.
add_custom_target(emulated_tests)
set(emulated_names kernels_test golden_dequant_test)

# headstart_test(NAME SOURCES file... DEPS lib... [LABELS label...] [TIMEOUT seconds])
function(headstart_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_compile_options(${name} PRIVATE ${HEADSTART_WARNINGS})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  if(arg_LABELS MATCHES "^(unit|contract|fault|threads)$")
    add_dependencies(sanitized_tests ${name})
  endif()
  if(CMAKE_CROSSCOMPILING AND name IN_LIST emulated_names)
    add_dependencies(emulated_tests ${name})
    set(arg_LABELS emulated)
    math(EXPR arg_TIMEOUT "10 * ${arg_TIMEOUT}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}")
endfunction()
