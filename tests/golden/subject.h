// tests/golden/subject.h: our engine's layers, driven in any order over the lattice of tokens and
// layers.
//
// A schedule is a list of pieces, each a range of layers for some positions; every order that obeys
// the dependencies must give the same logits and the same K,V. The makers below give the orders
// that Headstart uses.
//
//   shapes   outermost first
//   threads  one owner
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "exec/executor_choice.h"
#include "exec/rope_tables.h"
#include "kv/capture.h"
#include "kv/live_kv.h"
#include "model/model.h"

namespace headstart::test {

struct Piece {
  uint32_t layer_first = 0;
  uint32_t layer_end = 0;
  std::vector<uint32_t> positions;  // ascending
};
using Schedule = std::vector<Piece>;

// [0, n_token) cut into blocks of the given sizes, which repeat.
std::vector<std::vector<uint32_t>> blocks(uint32_t n_token, std::span<const uint32_t> sizes);

// Block by block, each through all layers.
Schedule token_block_major(uint32_t n_token, uint32_t n_layer, std::span<const uint32_t> sizes);
// Layer by layer (`n_layer_step` at a time), each over all blocks.
Schedule layer_major(uint32_t n_token, uint32_t n_layer, std::span<const uint32_t> sizes,
                     uint32_t n_layer_step = 1);
// Early tokens at low layers first, late ones last: blocks and layers along diagonals.
Schedule staircase(uint32_t n_token, uint32_t n_layer, std::span<const uint32_t> sizes);

struct SubjectOptions {
  uint32_t n_ctx = 1024;
  uint32_t n_threads = 1;  // waiting threads of ggml spin, and tests run side by side
  uint32_t n_token_max = 512;
  kv::LiveType type_k = kv::LiveType::kF16;
  kv::LiveType type_v = kv::LiveType::kF16;
  exec::Kernels kernels = exec::Kernels::kGgml;
  kernels::PrefillOps prefill = {};
  float sparse_attention = 0;
  bool reference_numerics = false;  // ggml only; nothing is captured then
};

class Subject {
 public:
  static Result<std::unique_ptr<Subject>> open(const std::filesystem::path& gguf,
                                               const SubjectOptions& options = {});

  uint32_t n_layer() const { return model_->params().n_layer; }
  uint32_t n_vocab() const { return model_->params().n_vocab; }
  const model::Model& model() const { return *model_; }
  exec::LayerExecutor& executor() { return *executor_; }

  // Forgets K,V and computes the prompt in the schedule's order. Logits [n_row, n_vocab] of the
  // last n_row positions. With n_row 1 only the last one's are asked for, as in use.
  std::vector<float> prefill(std::span<const Token> tokens, const Schedule& schedule, size_t n_row);
  // Computes these pieces of a prompt whose other K,V are present; no logits.
  void recompute(std::span<const Token> tokens, const Schedule& schedule);
  // Logits [n_token, n_vocab] of generated tokens from `pos_first` on by the decode class, n_column
  // of them at a time.
  std::vector<float> decode(std::span<const Token> tokens, uint32_t pos_first,
                            uint32_t n_column = 1);

  // K and V of positions [0, n_token), every layer, as they lie in the live cache, or as they were
  // captured for the store.
  std::vector<std::byte> live_bytes(uint32_t n_token) const;
  std::vector<std::byte> captured_bytes(uint32_t n_token);
  // Writes the captured K,V of [0, n_token) into the live cache, as loading from the store does.
  void load_captured(uint32_t n_token);
  // Overwrites K,V of these positions, so that only recomputing brings them back.
  void spoil(std::span<const uint32_t> positions);

 private:
  Subject() = default;
  // Runs a piece and puts the logits of its positions from `row_first` on into `out`,
  // [n_token - row_first, n_vocab].
  void run(std::span<const Token> tokens, const Piece& piece, exec::HiddenStates& hidden,
           size_t row_first, std::vector<float>& out);

  std::unique_ptr<model::Model> model_;
  std::unique_ptr<exec::RopeTables> tables_;
  std::unique_ptr<exec::LayerExecutor> executor_;
  std::unique_ptr<kv::LiveKv> kv_;
  std::unique_ptr<kv::Capture> capture_;  // of all n_ctx positions
};

}  // namespace headstart::test
