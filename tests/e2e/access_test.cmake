find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME Server.AccessAndSignals
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/access_test.py $<TARGET_FILE:headstart>)
set_tests_properties(Server.AccessAndSignals PROPERTIES
  LABELS e2e TIMEOUT 1200 SKIP_RETURN_CODE 77)
