// cli/progress_bar.h: a bar on the terminal for long work; silent where stderr is no terminal.
#pragma once

#include <string>
#include <string_view>

#include "exec/engine.h"

namespace headstart::cli {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar();  // wipes the bar
  void show(std::string_view phase, double done);
  void wipe();
  exec::ProgressFn fn();

 private:
  bool terminal_;
  bool shown_ = false;
  double last_s_ = -1;
};

}  // namespace headstart::cli
