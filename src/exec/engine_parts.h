// exec/engine_parts.h: what a loaded engine is made of, shared by engine.cc and session.cc.
//
//   threads  shared by the sessions, each with a slot of its own: what has no lock is const or
//            atomic after opening
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "base/disk.h"
#include "exec/engine.h"
#include "exec/executor_choice.h"
#include "exec/prefill_sharing.h"
#include "exec/rope_tables.h"
#include "exec/step_scheduler.h"
#include "kv/capture.h"
#include "kv/live_kv.h"
#include "model/model.h"
#include "store/store.h"

namespace headstart::exec {

// Members are destroyed in reverse: the store flushes before what it needs goes.
// What a running request has for itself.
struct Slot {
  uint32_t id = 0;
  std::unique_ptr<kv::LiveKv> kv;
  std::unique_ptr<kv::Capture> capture;  // made for the slot's first request, if there is a store
  uint32_t n_token_resident = 0;         // tokens whose pages of `kv` earlier requests have taken
  bool busy = false;
  uint32_t n_token_wanted = 0;                 // of the request: prompt and answer
  std::atomic<uint32_t> n_token_computed = 0;  // of these so far, reused ones too
  // What the newest request of the slot computed: prompt and answer.
  std::vector<Token> tokens;
  std::string salt;
};

struct EngineParts {
  EngineOptions options;
  SystemClock clock;
  PosixDisk disk;
  std::unique_ptr<model::Tokenizer> tokenizer;
  std::unique_ptr<model::ChatTemplate> chat_template;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<RopeTables> tables;
  std::unique_ptr<LayerExecutor> executor;
  std::unique_ptr<StepScheduler> scheduler;
  std::unique_ptr<store::Store> store;  // null where nothing is reused
  PrefillSharing sharing;
  uint32_t n_capture = 0;  // tokens of a capture window
  Digest fingerprint{};
  Digest numeric{};
  std::atomic<double> prefill_s_per_token = 0;  // of the newest slice of typical size
  mutable std::mutex slots_mutex;
  std::condition_variable slot_freed;
  std::vector<std::unique_ptr<Slot>> slots;  // [n_parallel]
};

}  // namespace headstart::exec
