// bench/scratch_dir.h: a temporary folder of a bench.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace headstart::bench {

// A folder of its own that goes with the bench.
class ScratchDir {
 public:
  ScratchDir() {
    std::string name = (std::filesystem::temp_directory_path() / "headstart-bench-XXXXXX").string();
    HS_CHECK(::mkdtemp(name.data()) != nullptr, "a temporary folder");
    path_ = name;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace headstart::bench
