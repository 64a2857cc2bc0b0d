// base/check.h: HS_CHECK(condition, message) aborts when an invariant of our own code is broken.
//
// Never used for input from outside: that returns a Result.
#pragma once

namespace headstart {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* message);

}  // namespace headstart

#define HS_CHECK(condition, message) \
  ((condition) ? void(0) : ::headstart::check_failed(__FILE__, __LINE__, #condition, message))
