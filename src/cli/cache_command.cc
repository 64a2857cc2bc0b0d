// headstart cache stats|verify|clear: the chunks on disk.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "store/disk_tier.h"

namespace headstart::cli {
namespace {

struct CacheFlags {
  std::string cache_dir;
  bool json = false;
};

Result<void> stats(store::DiskTier& tier, const std::filesystem::path& dir, bool json) {
  const store::TierStats s = tier.stats();
  if (json) {
    nlohmann::ordered_json out = {{"dir", dir.string()},
                                  {"n_chunk", s.n_chunk},
                                  {"size_bytes", s.size_bytes},
                                  {"n_corrupt", s.n_corrupt}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf("%s: %llu chunks, %.1f MiB\n", dir.c_str(),
                static_cast<unsigned long long>(s.n_chunk),
                static_cast<double>(s.size_bytes) / 0x1p20);
  }
  return {};
}

Result<void> verify(store::DiskTier& tier) {
  // Files that the index refused at the start were damaged too, and are gone.
  const uint64_t at_open = tier.stats().n_corrupt;
  HS_ASSIGN_OR_RETURN(const store::VerifyReport report, tier.verify());
  std::printf("%llu chunks are whole, %llu were damaged and have been dropped\n",
              static_cast<unsigned long long>(report.n_ok),
              static_cast<unsigned long long>(report.n_corrupt + at_open));
  return {};
}

Result<void> run(const CacheFlags& flags, const std::string& what) {
  HS_ASSIGN_OR_RETURN(const auto dir, resolve_cache_dir(flags.cache_dir));
  PosixDisk disk;
  SystemClock clock;
  if (!std::filesystem::is_directory(dir)) {
    return Error{Code::kNotFound, "there is no store in " + dir.string() + "; pass --cache-dir"};
  }
  // Looking must not evict: the store may have been made with a larger budget than this one's.
  HS_ASSIGN_OR_RETURN(const auto tier, store::DiskTier::open(dir, UINT64_MAX, disk, clock));
  if (what == "stats") return stats(*tier, dir, flags.json);
  if (what == "verify") return verify(*tier);
  const uint64_t n_chunk = tier->stats().n_chunk;
  HS_RETURN_IF_ERROR(tier->clear());
  std::printf("%llu chunks removed\n", static_cast<unsigned long long>(n_chunk));
  return {};
}

}  // namespace

Command add_cache(CLI::App& app) {
  auto flags = std::make_shared<CacheFlags>();
  app.require_subcommand(1);
  app.add_option("--cache-dir", flags->cache_dir, "folder (default ~/.cache/headstart/kv)");
  app.add_subcommand("stats", "how much is stored")->add_flag("--json", flags->json, "as JSON");
  app.add_subcommand("verify", "read every chunk, drop the damaged ones");
  app.add_subcommand("clear", "remove every chunk");
  return [flags, &app] {
    const auto done = run(*flags, app.get_subcommands().front()->get_name());
    return done.ok() ? 0 : report(done.error());
  };
}

}  // namespace headstart::cli
