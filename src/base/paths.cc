#include "base/paths.h"

#include <cstdlib>

namespace headstart {

Result<std::filesystem::path> cache_home() {
  auto absolute = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? std::filesystem::path(value)
                                               : std::filesystem::path();
  };
  if (auto xdg = absolute("XDG_CACHE_HOME"); !xdg.empty()) return xdg / "headstart";
  if (auto home = absolute("HOME"); !home.empty()) return home / ".cache" / "headstart";
  return Error{Code::kInvalidArgument,
               "neither XDG_CACHE_HOME nor HOME is an absolute path; set one, or pass --cache-dir"};
}

}  // namespace headstart
