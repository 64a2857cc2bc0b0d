// exec/layer_executor.h: computes a range of layers for a set of tokens.
//
// Token-block-major prefill calls run() with all layers for one block after the other; layer-major
// prefill with one layer for every block, the hidden states kept between; repair with scattered
// positions. Every order gives the same bits where grain() is 1, else every order whose blocks
// begin at multiples of it.
//
//   shapes   outermost first
//   threads  one run() at a time for each executor; K,V of layers outside the step's range may be
//            read and written by others meanwhile
#pragma once

#include <cstdint>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "kv/capture.h"
#include "kv/live_kv.h"

namespace headstart::exec {

// The two ways of computing. Where grain() is 1 a token's prefill bits never depend on its
// neighbours.
enum class NumericClass {
  kPrefill,  // many tokens; prompts always use it, whatever the length
  kDecode,   // one token or a few at a time, for generated text
};

enum class WantLogits { kNone, kLast, kAll };

// Rows of hidden state, [n_token, d_model] f32, row i for position pos_first + i.
class HiddenStates {
 public:
  HiddenStates(uint32_t pos_first, uint32_t n_token, uint32_t d_model)
      : pos_first_(pos_first), d_model_(d_model), values_(size_t{n_token} * d_model) {}
  float* row(uint32_t pos) { return values_.data() + size_t{pos - pos_first_} * d_model_; }
  bool holds(uint32_t pos) const {
    return pos >= pos_first_ && size_t{pos - pos_first_} * d_model_ < values_.size();
  }

 private:
  uint32_t pos_first_;
  uint32_t d_model_;
  std::vector<float> values_;
};

// What one query head of a layer needs of its keys for a block of 128 queries. Whatever share of
// the mass is attended to, it is counted at kernels::kCountedShare.
struct AttentionActivity {
  uint32_t layer = 0;
  uint32_t head = 0;
  uint32_t query_block = 0;  // position / kernels::kQueryBlock
  uint32_t n_active = 0;     // key blocks of kernels::kKeyBlock, the fewest that hold the mass
  uint32_t n_causal = 0;     // those that the queries see
};

// What a step's attention was and took; steps add to it.
struct AttentionReport {
  std::vector<AttentionActivity> activity;  // of block-sparse layers
  double cpu_s = 0;                         // of the process, while attention ran
};

// Consecutive tokens of a step that belong to one sequence.
struct SequenceRows {
  uint32_t n_token = 0;
  kv::LiveKv* kv = nullptr;        // K,V of every position below the last that is not computed
                                   // here must be present in the layers of the range
  kv::Capture* capture = nullptr;  // null: K,V are not captured
};

struct LayerStep {
  uint32_t layer_first = 0;
  uint32_t layer_end = 0;               // one past the last
  std::span<const Token> tokens;        // [n_token]; read where layer_first is 0
  std::span<const uint32_t> positions;  // [n_token], ascending in a sequence, below its n_ctx
  std::vector<SequenceRows> sequences;  // one, or in decoding several of the same shape and types
  NumericClass numeric_class = NumericClass::kPrefill;
  // Input where layer_first > 0, output where layer_end < n_layer; else may be null.
  HiddenStates* hidden = nullptr;
  WantLogits want_logits = WantLogits::kNone;  // only where layer_end is n_layer
  std::vector<float>* logits = nullptr;        // [1 or n_token, n_vocab]
  std::stop_token cancel;                      // looked at between operations
  AttentionReport* attention = nullptr;        // of prefill on native kernels; may be null
};

class LayerExecutor {
 public:
  virtual ~LayerExecutor() = default;

  // Name, revision and target: everything of the executor that a result's bits depend on.
  virtual std::string identity() const = 0;
  // Prefill gives the same bits however a prompt is sliced, if slices start at multiples of this.
  virtual uint32_t grain() const = 0;
  virtual uint32_t n_token_max() const = 0;  // of one step
  // Of a decode step. Each of its tokens gets the bits that it has in a step of its own.
  virtual uint32_t n_decode_max() const = 0;
  // Errors: kCancelled, kExhausted. K,V of the step's tokens are undefined after an error.
  virtual Result<void> run(const LayerStep& step) = 0;
};

}  // namespace headstart::exec
