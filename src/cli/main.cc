// The headstart program: parses, wires up, runs.
#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdio>
#include <exception>

#include "base/log.h"
#include "cli/commands.h"

namespace headstart::cli {
namespace {

int run(int argc, char** argv) {
  CLI::App app("Headstart: a fast first token for GGUF models, by reusing KV cache");
  app.require_subcommand(1);
  app.fallthrough();
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "log what is done, on stderr");
  app.set_version_flag("--version", HEADSTART_VERSION);

  auto* run_app = app.add_subcommand("run", "answer one prompt");
  auto* serve_app = app.add_subcommand("serve", "an OpenAI-compatible server");
  auto* cache_app = app.add_subcommand("cache", "look at or empty the stored KV cache");
  auto* bench_app = app.add_subcommand("bench", "measure, against a reference in the same run");
  const std::pair<CLI::App*, Command> commands[] = {{run_app, add_run(*run_app)},
                                                    {serve_app, add_serve(*serve_app)},
                                                    {cache_app, add_cache(*cache_app)},
                                                    {bench_app, add_bench(*bench_app)}};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  spdlog::set_level(verbose ? spdlog::level::debug : spdlog::level::warn);
  for (const auto& [sub, command] : commands) {
    if (sub->parsed()) return command();
  }
  return 2;
}

}  // namespace
}  // namespace headstart::cli

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("headstart"));
  spdlog::set_pattern("%^%l%$: %v");
  try {
    return headstart::cli::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "headstart: %s\n", e.what());
    return 1;
  }
}
