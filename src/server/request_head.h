// server/request_head.h: how much of a request's head has arrived, and whether it is too much.
//
// httplib bounds a header line and their number but not their sum, answers each with the same 400,
// and drops a request line that is too long without a word.
//
//   threads  one owner
#pragma once

#include <cstddef>
#include <string_view>

namespace headstart::server {

inline constexpr size_t kHeadLineBytesMax = 8192;  // the request line, or a header; with its CRLF
inline constexpr size_t kHeadersMax = 100;
inline constexpr size_t kHeadBytesMax = 64 * 1024;

class RequestHead {
 public:
  // The next bytes of the connection; what follows the head is left alone. The HTTP status of the
  // refusal, or 0: 414 for the request line, 431 for the headers.
  int read(std::string_view bytes);
  bool begun() const { return n_byte_ > 0; }
  bool whole() const { return whole_; }

 private:
  int fault() const;

  size_t n_byte_ = 0, n_line_ = 0, n_line_byte_ = 0;
  char last_ = 0;
  bool whole_ = false;
};

}  // namespace headstart::server
