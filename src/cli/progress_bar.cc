#include "cli/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace headstart::cli {

ProgressBar::ProgressBar() : terminal_(::isatty(STDERR_FILENO) == 1) {}
ProgressBar::~ProgressBar() { wipe(); }

void ProgressBar::show(std::string_view phase, double done) {
  if (!terminal_) return;
  const double now_s = SystemClock().now_s();
  if (done < 1 && now_s - last_s_ < 0.05) return;  // twenty times a second is smooth enough
  last_s_ = now_s;
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kWidth);
  const std::string bar = std::string(static_cast<size_t>(filled), '=') +
                          std::string(static_cast<size_t>(kWidth - filled), ' ');
  std::fprintf(stderr, "\r%-8.*s [%s] %3.0f %%", static_cast<int>(phase.size()), phase.data(),
               bar.c_str(), done * 100);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::wipe() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

exec::ProgressFn ProgressBar::fn() {
  return [this](std::string_view phase, double done) { show(phase, done); };
}

}  // namespace headstart::cli
