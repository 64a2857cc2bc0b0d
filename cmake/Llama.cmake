# Finds the pinned llama.cpp source and builds it once for each compiler and sanitizer family.
#
#   in   HEADSTART_LLAMA_DIR   the unpacked llama-cpp-python source distribution
#        HEADSTART_SANITIZE    "", "address,undefined" or "thread"
#        HEADSTART_LLAMA_VARIANT  "native"; or, to be measured against, "avx2" (no AVX-512) or
#                              "openblas" (its matrix products by OpenBLAS)
#   out  targets headstart::llama (ggml + libllama) and headstart::llama_common
#
# The archives lie in HEADSTART_DEPS_DIR, outside the build tree, under a key made of the source,
# the compiler, its flags and the CPU (ggml is built for the CPU it stands on).
set(HEADSTART_LLAMA_DIR "" CACHE PATH "Unpacked llama-cpp-python source distribution")
if(DEFINED ENV{XDG_CACHE_HOME})
  set(deps_default "$ENV{XDG_CACHE_HOME}/headstart/deps")
else()
  set(deps_default "$ENV{HOME}/.cache/headstart/deps")
endif()
set(HEADSTART_DEPS_DIR "${deps_default}" CACHE PATH "Where built dependencies are kept")

if(NOT EXISTS "${HEADSTART_LLAMA_DIR}/vendor/llama.cpp/ggml/CMakeLists.txt")
  message(FATAL_ERROR "HEADSTART_LLAMA_DIR='${HEADSTART_LLAMA_DIR}' holds no vendor/llama.cpp. "
    "Use ./run build, which fetches the pinned source, or pass -DHEADSTART_LLAMA_DIR=.")
endif()
set(llama_src "${HEADSTART_LLAMA_DIR}/vendor/llama.cpp")

set(llama_flags "")
if(HEADSTART_SANITIZE)
  # Undefined behaviour is looked for in our code only, at O1 and without debug information:
  # anything more takes twice as long to build and finds nothing of ours.
  string(REPLACE ",undefined" "" llama_sanitize "${HEADSTART_SANITIZE}")
  set(llama_flags "-fsanitize=${llama_sanitize} -fno-omit-frame-pointer -g0 -O1")
endif()

execute_process(
  COMMAND sh -c "cd '${llama_src}' && find ggml src common include vendor/nlohmann vendor/cpp-httplib -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
  OUTPUT_VARIABLE source_hash COMMAND_ERROR_IS_FATAL ANY)
if(CMAKE_CROSSCOMPILING)
  set(target_cpu "${CMAKE_SYSTEM_PROCESSOR}")
else()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -E -v - INPUT_FILE /dev/null
    ERROR_VARIABLE target_cpu OUTPUT_QUIET)
  string(REGEX MATCH "[^\n]*cc1[^\n]*|[^\n]*-cc1[^\n]*" target_cpu "${target_cpu}")
endif()
file(SHA256 "${CMAKE_CURRENT_LIST_DIR}/llama/CMakeLists.txt" recipe_hash)
set(HEADSTART_LLAMA_VARIANT "native" CACHE STRING "How ggml is built: native, avx2 or openblas")
set(llama_options "")
set(llama_blas "")
if(HEADSTART_LLAMA_VARIANT STREQUAL "avx2")
  set(llama_options -DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON
    -DGGML_F16C=ON -DGGML_BMI2=ON)
elseif(HEADSTART_LLAMA_VARIANT STREQUAL "openblas")
  find_library(OPENBLAS_LIBRARY openblas REQUIRED)
  find_path(OPENBLAS_INCLUDE cblas.h PATH_SUFFIXES openblas openblas-pthread REQUIRED)
  set(llama_options -DGGML_BLAS=ON -DGGML_BLAS_VENDOR=OpenBLAS -DBLAS_LIBRARIES=${OPENBLAS_LIBRARY}
    -DBLAS_INCLUDE_DIRS=${OPENBLAS_INCLUDE})
  set(llama_blas "${OPENBLAS_LIBRARY}")
elseif(NOT HEADSTART_LLAMA_VARIANT STREQUAL "native")
  message(FATAL_ERROR "HEADSTART_LLAMA_VARIANT='${HEADSTART_LLAMA_VARIANT}': use native, avx2 or openblas")
endif()
set(llama_key
  "${source_hash}|${CMAKE_CXX_COMPILER}|${CMAKE_CXX_COMPILER_VERSION}|${llama_flags}|${target_cpu}|${recipe_hash}")
if(llama_options)
  string(APPEND llama_key "|${llama_options}")
endif()
string(SHA256 llama_key "${llama_key}")
string(SUBSTRING "${llama_key}" 0 16 llama_key)
set(llama_build "${HEADSTART_DEPS_DIR}/llama-${CMAKE_CXX_COMPILER_ID}-${llama_key}")

file(MAKE_DIRECTORY "${HEADSTART_DEPS_DIR}")
file(LOCK "${llama_build}.lock" GUARD FILE)  # another checkout may be building the same
if(NOT EXISTS "${llama_build}/complete")
  # What an interrupted build left may belong to another checkout; ccache makes up for it.
  file(REMOVE_RECURSE "${llama_build}")
  message(STATUS "Building ggml and libllama in ${llama_build} (once)")
  set(launchers "")
  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM)
    set(launchers -DCMAKE_C_COMPILER_LAUNCHER=${CCACHE_PROGRAM}
                  -DCMAKE_CXX_COMPILER_LAUNCHER=${CCACHE_PROGRAM})
  endif()
  set(toolchain "")
  if(CMAKE_TOOLCHAIN_FILE)
    set(toolchain -DCMAKE_TOOLCHAIN_FILE=${CMAKE_TOOLCHAIN_FILE}
                  -DHEADSTART_SYSROOT=${HEADSTART_SYSROOT})
  endif()
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/llama -B ${llama_build} -G Ninja
      -DCMAKE_BUILD_TYPE=Release -DHEADSTART_LLAMA_DIR=${HEADSTART_LLAMA_DIR}
      -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}
      "-DCMAKE_C_FLAGS_RELEASE=-O3 -DNDEBUG ${llama_flags}"
      "-DCMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG ${llama_flags}"
      -DCMAKE_ARCHIVE_OUTPUT_DIRECTORY=${llama_build}/lib ${llama_options}
      ${launchers} ${toolchain}
    COMMAND_ERROR_IS_FATAL ANY OUTPUT_FILE ${llama_build}.log ERROR_FILE ${llama_build}.log)
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${llama_build} COMMAND_ERROR_IS_FATAL ANY)
  file(WRITE "${llama_build}/complete" "${llama_key}\n")
endif()

find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)

add_library(headstart_llama INTERFACE)
add_library(headstart::llama ALIAS headstart_llama)
target_include_directories(headstart_llama SYSTEM INTERFACE
  ${llama_src}/ggml/include ${llama_src}/include)
set(lib "${llama_build}/lib")
set(blas_archive "")
if(llama_blas)
  set(blas_archive "${lib}/libggml-blas.a")
endif()
target_link_libraries(headstart_llama INTERFACE
  ${lib}/libllama.a ${lib}/libggml.a ${lib}/libggml-cpu.a ${blas_archive} ${lib}/libggml-base.a
  ${llama_blas} Threads::Threads ${CMAKE_DL_LIBS})

add_library(headstart_llama_common INTERFACE)
add_library(headstart::llama_common ALIAS headstart_llama_common)
# src holds libllama's grammar parser, with which a client's grammar is checked (model/grammar.cc).
target_include_directories(headstart_llama_common SYSTEM INTERFACE
  ${llama_src}/common ${llama_src}/vendor ${llama_src}/src)
# httplib.h lays out its classes by these: all who include it must say what its archive was built
# with (vendor/cpp-httplib/CMakeLists.txt; of these only OPENSSL_SUPPORT is public there).
target_compile_definitions(headstart_llama_common INTERFACE
  CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_TCP_NODELAY=1 CPPHTTPLIB_LISTEN_BACKLOG=512
  CPPHTTPLIB_REQUEST_URI_MAX_LENGTH=32768 CPPHTTPLIB_FORM_URL_ENCODED_PAYLOAD_MAX_LENGTH=1048576)
target_link_libraries(headstart_llama_common INTERFACE
  ${lib}/libllama-common.a ${lib}/libllama-common-base.a headstart_llama
  ${lib}/libcpp-httplib.a OpenSSL::SSL OpenSSL::Crypto)
