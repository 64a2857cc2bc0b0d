#include "base/error.h"

namespace headstart {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kNotFound: return "not found";
    case Code::kUnsupported: return "unsupported";
    case Code::kCorrupt: return "corrupt";
    case Code::kIo: return "I/O error";
    case Code::kExhausted: return "exhausted";
    case Code::kUnavailable: return "unavailable";
    case Code::kCancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace headstart
