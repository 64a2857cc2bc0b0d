// base/cpu.h: what this machine's processor calls itself.
#pragma once

#include <string>

namespace headstart {

// "AMD EPYC 9B14", say; the kind of machine where the system names no model.
std::string cpu_name();

}  // namespace headstart
