// exec/chunk_collector.h: cuts computed K,V into chunks and hands them to the store.
//
// Follows one sequence from where reuse ended. A chunk leaves as soon as its cut is final and its
// K,V are computed; what is left at the end is stored as the tail.
//
//   threads  one owner, the computing thread; copying is all that it does there, sealing and
//            writing happen in the store's background thread
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kv/capture.h"
#include "kv/cuts.h"
#include "model/tokenizer.h"
#include "store/store.h"

namespace headstart::exec {

// What names a chunk besides its tokens.
struct ChunkOrigin {
  Digest fingerprint{};
  Digest numeric{};
  std::string salt;
};

class ChunkCollector {
 public:
  ChunkCollector(store::Store& store, kv::Capture& capture, const model::Tokenizer& tokenizer,
                 ChunkOrigin origin, const kv::KvShape& shape);

  // The next chunk begins at `pos`; all tokens before it are stored under `parent_key`.
  void start(uint32_t pos, const Digest& parent_key);
  // Tokens [pos, pos + n_token) are now in the capture window and took `seconds`.
  void computed(uint32_t n_token, double seconds);
  // Stores every chunk that is complete. `sequence` is all tokens known so far, computed or not;
  // K,V below n_strict have the bits of a cold run.
  void emit(std::span<const Token> sequence, uint32_t n_strict);
  // Stores a copy of what emit() left as a tail, which a longer one replaces later: for requests
  // that wait for this prompt.
  void offer_tail(std::span<const Token> sequence, uint32_t n_strict);
  // Tokens whose chunks have left.
  uint32_t pos() const { return pos_; }
  // Where each of them ended.
  std::span<const uint32_t> ends() const { return ends_; }
  // Stores what is left as the tail.
  void finish(std::span<const Token> sequence, uint32_t n_strict);

 private:
  kv::ChunkMeta describe(std::span<const Token> tokens, uint32_t n_strict, bool tail) const;
  void store_chunk(std::span<const Token> tokens, uint32_t n_strict, bool tail);
  bool put(kv::ChunkMeta meta);
  store::Store& store_;
  kv::Capture& capture_;
  const model::Tokenizer& tokenizer_;
  const ChunkOrigin origin_;
  const kv::KvShape shape_;
  uint32_t pos_ = 0;      // where the next chunk begins
  uint32_t pos_end_ = 0;  // one past the last computed token
  std::vector<uint32_t> ends_;
  Digest parent_key_{};
  std::vector<double> token_s_;  // [pos_end - pos] seconds that each token took
  bool broken_ = false;          // the store dropped a chunk: its children could not be found
};

}  // namespace headstart::exec
