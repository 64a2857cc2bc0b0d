#include "exec/text_stream.h"

#include <algorithm>

namespace headstart::exec {
namespace {

// Bytes at the end of `text` that begin a UTF-8 sequence without ending it.
size_t incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a sequence: look for its first byte
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

// The longest suffix of `text` that is a proper prefix of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == stop.substr(0, n)) return n;
  }
  return 0;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const size_t n = first < 0x80                    ? 1
                     : first >= 0xF0 && first < 0xF5 ? 4
                     : first >= 0xE0 && first < 0xF0 ? 3
                     : first >= 0xC2 && first < 0xE0 ? 2
                                                     : 0;
    bool ok = n != 0 && i + n <= text.size();
    for (size_t j = 1; ok && j < n; ++j)
      ok = (static_cast<unsigned char>(text[i + j]) & 0xC0) == 0x80;
    if (ok && n == 3) {
      const unsigned second = static_cast<unsigned char>(text[i + 1]);
      ok = !(first == 0xE0 && second < 0xA0) && !(first == 0xED && second >= 0xA0);
    } else if (ok && n == 4) {
      const unsigned second = static_cast<unsigned char>(text[i + 1]);
      ok = !(first == 0xF0 && second < 0x90) && !(first == 0xF4 && second >= 0x90);
    }
    if (ok)
      out.append(text.substr(i, n));
    else
      out += "\xEF\xBF\xBD";
    i += ok ? n : 1;
  }
  return out;
}

std::string TextStream::send(size_t n) {
  const std::string out = valid_utf8(std::string_view(held_).substr(0, n));
  held_.erase(0, n);
  sent_ += out;
  return out;
}

std::string TextStream::push(std::string_view piece) {
  if (stopped_) return {};
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at < first) first = at, stop_ = stop;
  }
  if (first != std::string::npos) {
    stopped_ = true;
    std::string out = send(first);
    held_.clear();
    return out;
  }
  size_t keep = incomplete_tail(held_);
  for (const std::string& stop : stops_) keep = std::max(keep, overlap(held_, stop));
  // A kept stop prefix may begin inside a sequence only if the stop string does: cut before it.
  size_t n = held_.size() - keep;
  n -= incomplete_tail(std::string_view(held_).substr(0, n));
  return send(n);
}

std::string TextStream::finish() { return stopped_ ? std::string() : send(held_.size()); }

}  // namespace headstart::exec
