# Builds files into a target: each as a std::string_view.
#
#   headstart_embed(TARGET HEADER NAMESPACE file...)
#
# Code includes HEADER (server/page_bytes.h, say) and finds icon.svg as NAMESPACE::icon_svg. The
# bytes are read when the target is built, so that an edited file is built in again.
#
# This file is also the script that writes the sources: cmake -P, with the same names as variables.

if(CMAKE_SCRIPT_MODE_FILE)
  set(declared "#pragma once\n#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
  set(defined "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
  string(REPLACE "|" ";" files "${FILES}")
  foreach(file ${files})
    get_filename_component(name "${file}" NAME)
    string(MAKE_C_IDENTIFIER "${name}" name)
    file(READ "${file}" bytes HEX)
    string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
    string(APPEND declared "extern const std::string_view ${name};\n")
    string(APPEND defined "static constexpr char ${name}_bytes[] = {${bytes}};\n"
      "constinit const std::string_view ${name}{${name}_bytes, sizeof(${name}_bytes)};\n")
  endforeach()
  file(WRITE "${OUT}/${HEADER}" "${declared}}  // namespace\n")
  string(REGEX REPLACE "\\.h$" ".cc" source "${HEADER}")
  file(WRITE "${OUT}/${source}" "${defined}}  // namespace\n")
  return()
endif()

function(headstart_embed target header namespace)
  set(out "${CMAKE_CURRENT_BINARY_DIR}/embedded")
  string(REGEX REPLACE "\\.h$" ".cc" source "${header}")
  string(REPLACE ";" "|" files "${ARGN}")
  add_custom_command(
    OUTPUT "${out}/${header}" "${out}/${source}"
    COMMAND ${CMAKE_COMMAND} "-DFILES=${files}" "-DOUT=${out}" "-DHEADER=${header}"
      "-DNAMESPACE=${namespace}" -P "${CMAKE_CURRENT_FUNCTION_LIST_FILE}"
    DEPENDS ${ARGN} "${CMAKE_CURRENT_FUNCTION_LIST_FILE}"
    COMMENT "Embedding ${header}" VERBATIM)
  target_sources(${target} PRIVATE "${out}/${header}" "${out}/${source}")
  target_include_directories(${target} PRIVATE "${out}")
endfunction()
