// headstart bench NAME: measures against a reference in the same run.
#include "bench/report.h"
#include "cli/commands.h"

namespace headstart::cli {
namespace {

struct BenchFlags {
  std::string name;
  std::string json;
  bench::BenchOptions options;
};

Result<void> run(const BenchFlags& flags) {
  if (flags.options.n_threads < 1 || flags.options.n_threads > 512) {
    return Error{Code::kInvalidArgument, "-t: use 1 to 512 threads"};
  }
  std::string names;
  for (const bench::Bench& b : bench::all_benches()) {
    if (b.name == flags.name) {
      HS_ASSIGN_OR_RETURN(const auto rows, b.run(flags.options));
      if (rows.empty()) {
        return Error{Code::kInvalidArgument, "this bench needs a model: --model FILE"};
      }
      bench::print_table(flags.name, rows);
      return flags.json.empty() ? Result<void>() : bench::write_json(flags.json, flags.name, rows);
    }
    names += std::string("\n  ") + b.name + ": " + b.what;
  }
  return Error{Code::kInvalidArgument,
               "there is no bench '" + flags.name + "'; there are:" + names};
}

}  // namespace

Command add_bench(CLI::App& app) {
  auto flags = std::make_shared<BenchFlags>();
  app.add_option("name", flags->name, "which bench")->required();
  app.add_option("--model,-m", flags->options.models, "GGUF file; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--json", flags->json, "also write the result to this file");
  app.add_option("--data", flags->options.data, "folder of benchmark data");
  app.add_option("-t,--threads", flags->options.n_threads, "compute threads; 1 measures CPU time");
  app.add_option("--repeat", flags->options.n_repeat, "paired runs (0: the bench's own number)");
  return [flags] {
    const auto done = run(*flags);
    return done.ok() ? 0 : report(done.error());
  };
}

}  // namespace headstart::cli
