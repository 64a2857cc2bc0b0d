// exec/engine_parts.h: what a loaded engine is made of, shared by engine.cc and session.cc.
//
//   threads  a session uses all of it and is the only one to do so (`busy`); `store` may be asked
//            for its statistics by any thread
#pragma once

#include <memory>
#include <mutex>

#include "base/clock.h"
#include "base/disk.h"
#include "exec/engine.h"
#include "exec/executor_choice.h"
#include "exec/rope_tables.h"
#include "kv/capture.h"
#include "kv/live_kv.h"
#include "model/model.h"
#include "store/store.h"

namespace headstart::exec {

// Members are destroyed in reverse: the store flushes before what it needs goes.
struct EngineParts {
  EngineOptions options;
  SystemClock clock;
  PosixDisk disk;
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::unique_ptr<model::ChatTemplate> chat_template;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<RopeTables> tables;
  std::unique_ptr<LayerExecutor> executor;
  std::unique_ptr<kv::LiveKv> kv;
  std::unique_ptr<kv::Capture> capture;  // null without a store
  std::unique_ptr<store::Store> store;   // null where nothing is reused
  Digest fingerprint{};
  Digest numeric{};
  uint32_t n_token_resident = 0;   // tokens whose pages of `kv` earlier requests have taken
  double prefill_s_per_token = 0;  // of the newest slice of typical size
  std::mutex busy;                 // one request at a time
};

}  // namespace headstart::exec
