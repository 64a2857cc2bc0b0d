// exec/text_stream.h: turns token pieces into text that may be sent.
//
// Never cuts a UTF-8 sequence (an incomplete tail waits), never sends a stop string or what
// follows it: only a suffix that can still become one is held back.
//
//   threads  one owner
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headstart::exec {

// Replaces what is not UTF-8 by U+FFFD, so that every receiver can take the text.
std::string valid_utf8(std::string_view text);

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the bytes of one token; returns what may be sent now.
  std::string push(std::string_view piece);
  // No more tokens: returns what was held back, bytes that never became UTF-8 as U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }          // a stop string was completed
  const std::string& stop() const { return stop_; }  // which
  const std::string& text() const { return sent_; }  // everything returned so far

 private:
  std::string send(size_t n);
  std::vector<std::string> stops_;
  std::string held_;
  std::string sent_;
  std::string stop_;
  bool stopped_ = false;
};

}  // namespace headstart::exec
