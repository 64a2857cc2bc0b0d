# Each case of scripts_test.sh is a test of its own: Scripts.Subject.DoesThing.
set(script ${CMAKE_CURRENT_LIST_DIR}/scripts_test.sh)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${script})
file(STRINGS ${script} cases REGEX "^[A-Z][A-Za-z]*\\.[A-Za-z]+\\(\\) {$")
foreach(case ${cases})
  string(REGEX REPLACE "\\(.*" "" case ${case})
  add_test(NAME Scripts.${case} COMMAND ${script} ${case})
  set_tests_properties(Scripts.${case} PROPERTIES LABELS e2e TIMEOUT 60)
endforeach()
