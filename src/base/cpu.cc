#include "base/cpu.h"

#include <sys/utsname.h>

#include <fstream>

namespace headstart {

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  utsname names;
  return ::uname(&names) == 0 ? names.machine : "unknown";
}

}  // namespace headstart
