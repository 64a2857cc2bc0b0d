// bench/eviction_bench.h: hit rates of store/eviction on a request trace, without a model.
//
// A trace is a file of JSON lines; each request's "hash_ids" name its blocks of 512 tokens from the
// first on, equal ids standing for equal prefixes. A block hits if it and every block before it in
// the request are in the cache; hits are counted over all blocks. Every block has the same size and
// the same cost, so only the order of eviction is compared.
//
//   case    "N % of the footprint, against lru" or "…, against belady" (that optimum knows the
//           future, but places no value on whole prefixes)
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace headstart::bench {

using BlockId = uint64_t;
using Trace = std::vector<std::vector<BlockId>>;  // one list of blocks for each request

inline constexpr uint64_t kTraceBytesMax = uint64_t{256} << 20;

struct EvictionRow {
  std::string name;
  double value = 0;      // hit rate of store/eviction with its production settings
  double reference = 0;  // hit rate of the policy that `name` names
  double ratio = 0;      // value / reference
  std::string unit;
  uint64_t n = 0;  // blocks asked for
};

// Errors: kCorrupt; the message names the line.
Result<Trace> parse_trace(std::string_view json_lines);

// Hits of a cache of `capacity` blocks.
uint64_t hits_headstart(const Trace& trace, uint64_t capacity);
uint64_t hits_lru(const Trace& trace, uint64_t capacity);
uint64_t hits_belady(const Trace& trace, uint64_t capacity);

// Replays the trace at 1, 5 and 20 % of its footprint. Errors: kNotFound, kIo, kCorrupt.
Result<std::vector<EvictionRow>> bench_eviction(const std::filesystem::path& trace);

}  // namespace headstart::bench
