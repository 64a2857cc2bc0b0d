find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME Server.Dashboard
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/dashboard_test.py $<TARGET_FILE:headstart>
          ${CMAKE_BINARY_DIR}/screenshots)
set_tests_properties(Server.Dashboard PROPERTIES LABELS "e2e;browser" TIMEOUT 1200 SKIP_RETURN_CODE 77)
