// base/error.h: why an operation failed, for the program (code) and for its operator (message).
//
// The message is one line that says what happened and what to do about it. It never holds the
// text of a prompt.
#pragma once

#include <string>
#include <string_view>

namespace headstart {

enum class Code {
  kInvalidArgument,  // the caller's input is wrong; the same call will fail again
  kNotFound,         // the named thing does not exist
  kUnsupported,      // understood, but this build or model cannot do it
  kCorrupt,          // bytes that fail their checksum or their limits
  kIo,               // a file or a socket failed
  kExhausted,        // memory, disk or a queue is full
  kUnavailable,      // a deadline passed or a peer is gone: try elsewhere
  kCancelled,        // the caller asked to stop
};

std::string_view to_string(Code code);

struct Error {
  Code code;
  std::string message;
};

}  // namespace headstart
