#include "server/request_head.h"

namespace headstart::server {

int RequestHead::fault() const {
  const bool request_line = n_line_ == 0;
  if (n_line_byte_ > kHeadLineBytesMax) return request_line ? 414 : 431;
  // After the last header comes the empty line, of two bytes.
  const bool one_more = n_line_ > kHeadersMax && n_line_byte_ > 2;
  return n_byte_ > kHeadBytesMax || one_more ? 431 : 0;
}

int RequestHead::read(std::string_view bytes) {
  for (const char c : bytes) {
    if (whole_) return 0;
    ++n_byte_;
    ++n_line_byte_;
    const bool ends = last_ == '\r' && c == '\n';
    last_ = c;
    whole_ = ends && n_line_byte_ == 2;
    if (whole_) return 0;
    if (const int status = fault()) return status;
    if (ends) {
      ++n_line_;
      n_line_byte_ = 0;
    }
  }
  return 0;
}

}  // namespace headstart::server
