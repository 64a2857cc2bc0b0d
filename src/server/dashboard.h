// server/dashboard.h: the page at / and the snapshot that it shows.
//
// The page's files (src/server/dashboard/ and the chart library of Debian's package libjs-chart.js)
// are built into the program: it works without a disk or a network.
//
//   units    as docs/formats/dashboard.md
//   threads  any at once
//   source   docs/formats/dashboard.md, docs/decisions/0018-dashboard.md
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/request_log.h"
#include "server/request_queue.h"

namespace headstart::server {

// A file of the page. Public: nothing in it is a secret.
struct PageFile {
  const char* path;  // of its URL
  const char* type;  // Content-Type
  std::string_view bytes;
};
std::span<const PageFile> page_files();

// Nothing but these files and this server: no inline script or style, no other host, no frame.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'";

struct MachineMemory {  // zeros where the system does not say
  uint64_t total_bytes = 0, available_bytes = 0;
  uint64_t process_bytes = 0;  // resident, without the files that it maps
  uint64_t mapped_bytes = 0;   // resident of the files that it maps, the model's among them
};
MachineMemory machine_memory();

// What is true at the moment of asking.
struct Snapshot {
  double unix_s = 0, uptime_s = 0;
  std::string model;  // empty while it loads
  uint32_t n_ctx = 0;
  QueueLimits limits;
  uint32_t n_waiting = 0, n_running = 0, n_connection = 0, n_connection_max = 0;
  std::optional<exec::EngineStats> engine;  // nothing while the model loads
  MachineMemory memory;
  RequestTotals totals;
  std::vector<RequestRecord> requests;  // newest first
};

std::string snapshot_body(const Snapshot& snapshot);

}  // namespace headstart::server
