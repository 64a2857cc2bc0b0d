// bench/out_of_core.h: one prefill in a process of its own, perhaps with little memory.
#pragma once

#include "bench/memory_group.h"
#include "bench/report.h"

namespace headstart::bench {

enum class Runner : uint8_t { kReadAhead, kNoReadAhead, kLibllama };

struct PassOptions {
  std::filesystem::path model;  // a file of the caller's own that no process maps
  uint32_t n_token = 0;
  uint32_t n_threads = 1;
  uint32_t n_vocab = 0;
};

struct Pass {
  double s = 0;              // wall, without opening the model
  double wait_s = 0;         // of that, asleep: waiting for the disk, at one thread
  double read_bytes = 0;     // from the disk meanwhile
  uint64_t n_fault = 0;      // waits for the disk at a page that was not there
  uint64_t logits_hash = 0;  // of the last position; 0: libllama's
};

// Begins with the model's file dropped from memory. Errors: as in_child().
Result<Pass> run_pass(const PassOptions& options, Runner runner, const MemoryGroup* group);

}  // namespace headstart::bench
