// exec/kv_loader.h: brings stored chunks into the live cache.
//
// K is rotated to its position while it is copied. Cells that no computed token can see (outside
// the window of a sliding-window layer) are not read.
//
//   threads  one owner; another thread may compute with layers that are not being loaded
#pragma once

#include <cstdint>

#include "exec/rope_tables.h"
#include "kv/capture.h"
#include "kv/live_kv.h"
#include "model/params.h"
#include "store/store.h"

namespace headstart::exec {

struct LoadTarget {
  const model::ModelParams* params = nullptr;
  const RopeTables* tables = nullptr;  // reserved up to the last position
  Digest fingerprint{};
  kv::LiveKv* kv = nullptr;
};

// Loads the first chunks of `match`, n_reuse tokens in all, in order of position. The last chunk
// also goes to `capture` (if given, restarted at the chunk's start) where `capture_last` is set: it
// will be stored again as a part of a longer one. Returns how many tokens are present: fewer than
// n_reuse where a chunk had vanished or was damaged; those from there on must be computed.
uint32_t load_prefix(store::Store& store, const store::Match& match, uint32_t n_reuse,
                     const LoadTarget& target, kv::Capture* capture, bool capture_last);

}  // namespace headstart::exec
