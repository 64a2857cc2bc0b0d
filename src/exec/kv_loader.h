// exec/kv_loader.h: brings stored chunks into the live cache.
//
// K is rotated to its position while it is copied. Cells that no computed token can see (outside
// the window of a sliding-window layer) are not read.
//
//   threads  one owner; another thread may compute with layers that are not being loaded
#pragma once

#include <cstdint>
#include <vector>

#include "exec/engine.h"
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

struct Loaded {
  uint32_t n_token = 0;            // leading tokens whose K,V are now in the live cache
  uint32_t n_chunk = 0;            // chunks of the match that they came from
  bool captured = false;           // the last of these chunks is in the capture window too
  std::vector<PromptCells> cells;  // of these tokens, in order of position
};

// Loads the first n_reuse tokens of `match`, in order of position. A last chunk that is used in
// part, or that is a tail, is also put into `capture` (started at the chunk's start): it will be
// stored again as a part of a longer one. Stops before a chunk that has vanished or is damaged;
// the tokens from there on must be computed.
Loaded load_prefix(store::Store& store, const store::Match& match, uint32_t n_reuse,
                   const LoadTarget& target, kv::Capture& capture);

}  // namespace headstart::exec
