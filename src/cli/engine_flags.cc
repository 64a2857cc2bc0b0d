#include "cli/engine_flags.h"

#include <charconv>

#include "base/memory.h"
#include "base/paths.h"
#include "kernels/target.h"

namespace headstart::cli {

void EngineFlags::add_to(CLI::App& app) {
  app.add_option("-m,--model", model, "GGUF file")->required();
  app.add_option("-c,--ctx-size", options.n_ctx,
                 "context in tokens (0: what the model was trained for)");
  app.add_option("-t,--threads", options.n_threads, "compute threads (0: one for each core)");
  app.add_option("-b,--batch-size", options.n_batch, "most tokens computed at once, 16 to 2048");
  app.add_option("--cache-type-k", options.cache_type_k, "type of K in memory: f16 or q8_0");
  app.add_option("--cache-type-v", options.cache_type_v, "type of V in memory: f16 or q8_0");
  app.add_option("--kernels", options.kernels, "what computes: auto, native or ggml");
  app.add_option(
      "--operands", options.operands,
      "operands of native prefill: auto (f32 or bf16), f32, bf16, or int8, which is faster "
      "and as far from f32 as llama.cpp's");
  app.add_option("--sparse-attention", options.sparse_attention,
                 "share of the attention mass that prefill keeps, 0.5 to 1 (0: dense, all of it)");
  app.add_option(
      "--cpu", cpu,
      "instruction set of native kernels: auto, portable, avx2, avx512, avx512bf16, neon, "
      "neon-dotprod, neon-bf16");
  app.add_option(
      "--spec-draft-n-max", options.n_propose_max,
      "most tokens, looked up in the text so far, that a step computes on trial (0: off)");
  app.add_option("--cache-dir", cache_dir,
                 "folder of the stored KV cache (default ~/.cache/headstart/kv)");
  app.add_option("--cache-disk", cache_disk, "most bytes on disk, e.g. 512M or 4G");
  app.add_option("--cache-ram", cache_ram,
                 "most bytes of stored chunks in memory (default: a tenth of it)");
  app.add_flag("--no-cache", no_cache, "neither look up nor store");
  app.add_option("--reuse", reuse,
                 "off, strict (bits of a cold run) or exact (also equal up to rounding)");
}

Result<uint64_t> parse_size(const std::string& text, const char* flag) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  int shift = 0;
  bool valid = error == std::errc() && rest != text.data();
  if (valid && rest != end) {
    const std::string_view suffixes = "KMGT";
    const size_t i =
        suffixes.find(static_cast<char>(std::toupper(static_cast<unsigned char>(*rest))));
    valid = i != std::string_view::npos && rest + 1 == end;
    shift = valid ? 10 * (static_cast<int>(i) + 1) : 0;
  }
  if (!valid || value > (UINT64_MAX >> shift)) {
    return Error{Code::kInvalidArgument,
                 std::string(flag) + ": '" + text + "' is no size; write 1048576, 512M or 4G"};
  }
  return value << shift;
}

Result<std::filesystem::path> resolve_cache_dir(const std::string& flag) {
  if (!flag.empty()) return std::filesystem::absolute(flag);
  HS_ASSIGN_OR_RETURN(const auto home, cache_home());
  return home / "kv";
}

Result<exec::EngineOptions> EngineFlags::resolve() const {
  HS_RETURN_IF_ERROR(kernels::limit_target(cpu));
  exec::EngineOptions o = options;
  o.model_path = model;
  if (reuse != "off" && reuse != "strict" && reuse != "exact") {
    return Error{Code::kInvalidArgument, "--reuse: use off, strict or exact, not '" + reuse + "'"};
  }
  if (reuse == "off" || no_cache) {
    o.reuse = store::ReuseMode::kOff;
    return o;
  }
  o.reuse = reuse == "strict" ? store::ReuseMode::kStrict : store::ReuseMode::kExact;
  HS_ASSIGN_OR_RETURN(o.cache_dir, resolve_cache_dir(cache_dir));
  HS_ASSIGN_OR_RETURN(o.disk_budget_bytes, parse_size(cache_disk, "--cache-disk"));
  if (cache_ram.empty()) {
    o.ram_budget_bytes = total_memory_bytes() / 10;
  } else {
    HS_ASSIGN_OR_RETURN(o.ram_budget_bytes, parse_size(cache_ram, "--cache-ram"));
  }
  if (o.disk_budget_bytes == 0) o.cache_dir.reset();
  return o;
}

}  // namespace headstart::cli
