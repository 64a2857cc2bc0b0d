// base/paths.h: where Headstart keeps what it may lose ($XDG_CACHE_HOME/headstart).
#pragma once

#include <filesystem>

#include "base/result.h"

namespace headstart {

// ${XDG_CACHE_HOME:-$HOME/.cache}/headstart. Errors: kInvalidArgument where neither is an absolute
// path.
Result<std::filesystem::path> cache_home();

}  // namespace headstart
