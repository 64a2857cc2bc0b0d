// headstart bench NAME: measures against a reference in the same run. Without NAME: lists them.
#include <cstdio>

#include "bench/report.h"
#include "cli/commands.h"
#include "kernels/target.h"

namespace headstart::cli {
namespace {

struct BenchFlags {
  std::string name;
  std::string json;
  std::string cpu = "auto";
  bench::BenchOptions options;
};

void list() {
  for (const bench::Bench& b : bench::all_benches()) std::printf("%s: %s\n", b.name, b.what);
}

Result<void> run(const BenchFlags& flags) {
  HS_RETURN_IF_ERROR(kernels::limit_target(flags.cpu));
  std::string names;
  for (const bench::Bench& b : bench::all_benches()) {
    if (b.name == flags.name) {
      HS_RETURN_IF_ERROR(bench::check_options(b, flags.options));
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
  app.add_option("name", flags->name, "which bench; none lists them");
  app.add_option("--model,-m", flags->options.models, "GGUF file; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--json", flags->json, "also write the result to this file");
  app.add_option("--data", flags->options.data, "folder of benchmark data");
  app.add_option("-t,--threads", flags->options.n_threads, "compute threads; 1 measures CPU time");
  app.add_option("--cpu", flags->cpu, "instruction set of our kernels, as in run --cpu");
  app.add_option("--operands", flags->options.operands, "of our prefill, as in run --operands");
  app.add_option("--rows", flags->options.rows, "lengths of prompt in tokens, e.g. 512,2048")
      ->delimiter(',')
      ->allow_extra_args(false);
  app.add_option("--repeat", flags->options.n_repeat, "paired runs (0: the bench's own number)");
  return [flags] {
    if (flags->name.empty()) {
      list();
      return 0;
    }
    const auto done = run(*flags);
    return done.ok() ? 0 : report(done.error());
  };
}

}  // namespace headstart::cli
