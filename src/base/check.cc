#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace headstart {

void check_failed(const char* file, int line, const char* condition, const char* message) {
  std::fprintf(stderr, "%s:%d: broken invariant (%s): %s\n", file, line, condition, message);
  std::abort();
}

}  // namespace headstart
