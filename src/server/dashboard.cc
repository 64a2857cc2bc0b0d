#include "server/dashboard.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/memory.h"
#include "server/answer_json.h"
#include "server/page_bytes.h"

namespace headstart::server {
namespace {

constexpr std::array<const char*, kTtftParts> kPartNames = {"queue", "wait", "lookup", "load",
                                                            "compute"};

// A thousandth of a millisecond is finer than anyone sees, and half the bytes.
double rounded(double value) { return std::round(value * 1e3) / 1e3; }

// [token, tokens, first layer, one past the last, source]
Json cells_of(const RequestRecord& record) {
  Json out = Json::array();
  for (const exec::PromptCells& c : record.cells) {
    out.push_back(
        Json::array({c.pos_first, c.n_token, c.layers.layer_first, c.layers.layer_end, c.source}));
  }
  return out;
}

Json request_of(const RequestRecord& r) {
  Json parts = Json::object();
  for (size_t i = 0; i < kTtftParts; ++i) parts[kPartNames[i]] = rounded(r.part_ms[i]);
  Json out = {{"number", r.number},
              {"id", r.id},
              {"endpoint", r.endpoint},
              {"state", to_string(r.state)},
              {"accepted", rounded(r.unix_s)},
              {"age_ms", rounded(r.age_ms)},
              {"n_prompt", r.n_prompt},
              {"n_predict", r.n_predict},
              {"n_prefilled", r.n_prefilled},
              {"n_cached", r.n_cached},
              {"n_cached_rounded", r.n_cached_rounded},
              {"n_generated", r.n_generated},
              {"ttft_ms", rounded(r.ttft_ms)},
              {"parts_ms", std::move(parts)},
              {"decode_ms", rounded(r.decode_ms)},
              {"prefill_tok_s", rounded(r.prefill_tok_s)},
              {"decode_tok_s", rounded(r.decode_tok_s)}};
  if (!r.cells.empty()) {
    out["cells"] = cells_of(r);
    out["cells_cut"] = r.cells_cut;
  }
  return out;
}

Json tiers_of(const store::StoreStats& store) {
  Json out = Json::array();
  for (const auto& [name, s] : store.tiers) {
    out.push_back({{"name", name},
                   {"n_chunk", s.n_chunk},
                   {"size_bytes", s.size_bytes},
                   {"budget_bytes", s.budget_bytes},
                   {"n_hit", s.n_hit},
                   {"n_miss", s.n_miss},
                   {"n_corrupt", s.n_corrupt},
                   {"n_put", s.n_put},
                   {"n_put_failed", s.n_put_failed},
                   {"n_evicted", s.n_evicted}});
  }
  return out;
}

void add_engine(Json& out, const exec::EngineStats& s) {
  out["kernels"] = s.kernels;
  out["totals"]["n_request"] = s.n_request;
  out["totals"]["n_prompt"] = s.n_prompt_token;
  out["totals"]["n_cached"] = s.n_cached_token;
  out["memory"]["kv_bytes"] = s.kv_bytes;
  out["memory"]["kv_bytes_max"] = s.kv_bytes_max;
  out["tiers"] = tiers_of(s.store);
  out["store"] = {{"queue_bytes", s.store.queue_bytes}, {"n_dropped", s.store.n_queue_dropped}};
}

}  // namespace

std::span<const PageFile> page_files() {
  constexpr const char* kHtml = "text/html; charset=utf-8";
  constexpr const char* kCss = "text/css; charset=utf-8";
  constexpr const char* kScript = "text/javascript; charset=utf-8";
  constexpr const char* kText = "text/plain; charset=utf-8";
  static const std::array files = {PageFile{"/", kHtml, page::index_html},
                                   PageFile{"/dashboard/style.css", kCss, page::style_css},
                                   PageFile{"/dashboard/app.js", kScript, page::app_js},
                                   PageFile{"/dashboard/charts.js", kScript, page::charts_js},
                                   PageFile{"/dashboard/format.js", kScript, page::format_js},
                                   PageFile{"/dashboard/lattice.js", kScript, page::lattice_js},
                                   PageFile{"/dashboard/requests.js", kScript, page::requests_js},
                                   PageFile{"/dashboard/icon.svg", "image/svg+xml", page::icon_svg},
                                   PageFile{"/dashboard/chart.js", kScript, page::chart_min_js},
                                   PageFile{"/dashboard/licence.txt", kText, page::copyright}};
  return files;
}

MachineMemory machine_memory() {
  MachineMemory m;
  m.total_bytes = total_memory_bytes();
  m.available_bytes = std::min(available_memory_bytes(), m.total_bytes);
  if (m.total_bytes == UINT64_MAX) m.total_bytes = m.available_bytes = 0;
  const ResidentMemory resident = resident_memory();
  m.process_bytes = resident.private_bytes;
  m.mapped_bytes = resident.file_bytes;
  return m;
}

std::string snapshot_body(const Snapshot& s) {
  Json out = {
      {"version", 1},
      {"now", rounded(s.unix_s)},
      {"uptime_s", rounded(s.uptime_s)},
      {"headstart", HEADSTART_VERSION},
      {"ready", s.engine.has_value()},
      {"model", s.model},
      {"n_ctx", s.n_ctx},
      {"queue",
       {{"n_running", s.n_running},
        {"n_running_max", s.limits.n_running_max},
        {"n_waiting", s.n_waiting},
        {"n_waiting_max", s.limits.n_waiting_max},
        {"n_connection", s.n_connection},
        {"n_connection_max", s.n_connection_max}}},
      {"memory",
       {{"total_bytes", s.memory.total_bytes},
        {"available_bytes", s.memory.available_bytes},
        {"process_bytes", s.memory.process_bytes},
        {"mapped_bytes", s.memory.mapped_bytes}}},
      {"totals", {{"n_prefilled", s.totals.n_prefilled}, {"n_generated", s.totals.n_generated}}},
      {"tiers", Json::array()},
      {"requests", Json::array()}};
  if (s.engine) add_engine(out, *s.engine);
  for (const RequestRecord& r : s.requests) out["requests"].push_back(request_of(r));
  return dump(out);
}

}  // namespace headstart::server
