#include "exec/chunk_collector.h"

#include <algorithm>
#include <numeric>

namespace headstart::exec {

ChunkCollector::ChunkCollector(store::Store& store, kv::Capture& capture,
                               const model::Tokenizer& tokenizer, ChunkOrigin origin,
                               const kv::KvShape& shape)
    : store_(store),
      capture_(capture),
      tokenizer_(tokenizer),
      origin_(std::move(origin)),
      shape_(shape) {}

void ChunkCollector::start(uint32_t pos, const Digest& parent_key) {
  pos_ = pos_end_ = pos;
  parent_key_ = parent_key;
  token_s_.clear();
  broken_ = false;
  capture_.set_start(pos);
}

void ChunkCollector::computed(uint32_t n_token, double seconds) {
  pos_end_ += n_token;
  token_s_.insert(token_s_.end(), n_token, seconds / n_token);
}

void ChunkCollector::emit(std::span<const Token> sequence, uint32_t n_strict) {
  for (;;) {
    const auto known =
        sequence.subspan(pos_, std::min<size_t>(kv::kChunkTokensMax, sequence.size() - pos_));
    std::vector<TextEnd> ends(known.size());
    std::transform(known.begin(), known.end(), ends.begin(),
                   [&](Token t) { return tokenizer_.text_end(t); });
    const auto cut = kv::first_cut(ends);
    if (!cut || pos_ + *cut > pos_end_) return;
    store_chunk(known.first(*cut), n_strict, /*tail=*/false);
  }
}

void ChunkCollector::finish(std::span<const Token> sequence, uint32_t n_strict) {
  emit(sequence, n_strict);
  if (pos_end_ > pos_) {
    store_chunk(sequence.subspan(pos_, pos_end_ - pos_), n_strict, /*tail=*/true);
  }
}

void ChunkCollector::offer_tail(std::span<const Token> sequence, uint32_t n_strict) {
  if (broken_ || pos_end_ == pos_) return;
  put(describe(sequence.subspan(pos_, pos_end_ - pos_), n_strict, /*tail=*/true));
}

bool ChunkCollector::put(kv::ChunkMeta meta) {
  kv::ChunkBuilder chunk(std::move(meta));
  capture_.copy_to(chunk);
  return store_.put(std::move(chunk));
}

kv::ChunkMeta ChunkCollector::describe(std::span<const Token> tokens, uint32_t n_strict,
                                       bool tail) const {
  const auto n_token = static_cast<uint32_t>(tokens.size());
  kv::ChunkMeta meta;
  meta.fingerprint = origin_.fingerprint;
  meta.numeric = origin_.numeric;
  meta.parent_key = parent_key_;
  meta.prefix_key = kv::extend_prefix(parent_key_, tokens);
  meta.content_key = kv::content_key(origin_.fingerprint, origin_.salt, tokens);
  meta.shape = shape_;
  meta.flags = tail ? kv::kFlagTail : 0u;
  meta.pos_first = pos_;
  meta.n_strict = std::min(n_token, n_strict > pos_ ? n_strict - pos_ : 0);
  meta.compute_s = std::accumulate(token_s_.begin(), token_s_.begin() + n_token, 0.0);
  meta.tokens.assign(tokens.begin(), tokens.end());
  return meta;
}

void ChunkCollector::store_chunk(std::span<const Token> tokens, uint32_t n_strict, bool tail) {
  const auto n_token = static_cast<uint32_t>(tokens.size());
  kv::ChunkMeta meta = describe(tokens, n_strict, tail);
  parent_key_ = meta.prefix_key;
  if (!broken_) broken_ = !put(std::move(meta));
  capture_.drop_front(n_token, pos_end_);
  pos_ += n_token;
  ends_.push_back(pos_);
  token_s_.erase(token_s_.begin(), token_s_.begin() + n_token);
}

}  // namespace headstart::exec
