// cli/engine_flags.h: the flags that every command with a model shares, named as in llama.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "exec/engine.h"

namespace headstart::cli {

struct EngineFlags {
  std::string model;
  std::string cpu = "auto";
  std::string cache_dir;  // empty: ${XDG_CACHE_HOME:-~/.cache}/headstart/kv
  bool no_cache = false;
  std::string reuse = "exact";
  std::string cache_disk = "4G";
  std::string cache_ram;        // empty: a tenth of memory
  exec::EngineOptions options;  // filled as far as flags map one to one

  void add_to(CLI::App& app);
  // Errors: kInvalidArgument, naming the flag.
  Result<exec::EngineOptions> resolve() const;
};

// "1048576", "512M", "4G" -> bytes. Errors: kInvalidArgument.
Result<uint64_t> parse_size(const std::string& text, const char* flag);
Result<std::filesystem::path> resolve_cache_dir(const std::string& flag);

}  // namespace headstart::cli
