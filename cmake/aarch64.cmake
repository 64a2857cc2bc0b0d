# Toolchain: builds for aarch64 Linux (ARMv8.0) with Debian's cross compiler; tests run under qemu.
#
#   in   HEADSTART_SYSROOT   Debian's arm64 packages, unpacked (scripts/sysroot.sh); no libc in it:
#                            that one comes with the compiler
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

if(NOT HEADSTART_SYSROOT)
  message(FATAL_ERROR "HEADSTART_SYSROOT names no folder of arm64 libraries. "
    "Use ./run build aarch64, which fetches them, or pass -DHEADSTART_SYSROOT=.")
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEADSTART_SYSROOT)
set(headers "${HEADSTART_SYSROOT}/usr/include")
foreach(language C CXX)
  set(CMAKE_${language}_FLAGS_INIT "-isystem ${headers}/aarch64-linux-gnu -isystem ${headers}")
endforeach()
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${HEADSTART_SYSROOT}/usr/lib/aarch64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH "${HEADSTART_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# The loader and libc of -L; our libraries by the run path that CMake gives programs it builds.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;/usr/aarch64-linux-gnu)
