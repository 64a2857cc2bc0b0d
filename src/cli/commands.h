// cli/commands.h: the commands of `headstart`, each a function from parsed flags to an exit code.
//
// add_*() declares a command's flags and returns what runs it: 0 for success, 1 for an error that
// has been reported on stderr, 2 for wrong usage.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/error.h"

namespace headstart::cli {

using Command = std::function<int()>;

Command add_run(CLI::App& app);
Command add_serve(CLI::App& app);
Command add_cache(CLI::App& app);
Command add_bench(CLI::App& app);

// Prints the error as one line and returns its exit code.
int report(const Error& error);

}  // namespace headstart::cli
