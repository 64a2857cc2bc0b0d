// tests/contract/sample_chunks.h: small chunks with made-up contents, for tests of kv and store.
//
// Cell values follow from layer, part and index, so that a sink can tell a right value from a
// wrong one without keeping a copy.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kv/chunk_format.h"
#include "store/tier.h"

namespace headstart::samples {

inline Digest digest_of(uint8_t fill) {
  Digest d;
  d.fill(fill);
  return d;
}

inline const Digest kModel = digest_of(0x11);
inline const Digest kNumeric = digest_of(0x22);
inline const kv::KvShape kShape{.n_layer = 2, .n_head_kv = 1, .d_head_k = 8, .d_head_v = 8};

inline std::vector<Token> tokens_from(Token first, uint32_t n_token) {
  std::vector<Token> tokens(n_token);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

struct Sample {
  Digest parent = kv::prefix_root(kModel, "");
  std::vector<Token> tokens = tokens_from(100, 8);
  Digest numeric = kNumeric;
  Digest fingerprint = kModel;
  kv::KvShape shape = kShape;
  uint32_t flags = 0;
  uint32_t pos_first = 0;
  int n_strict = -1;  // -1: all
  double compute_s = 0.5;
};

inline kv::Half value_of(uint32_t layer, kv::Part part, size_t index) {
  return static_cast<kv::Half>(layer * 4099 + static_cast<uint32_t>(part) * 257 + index * 31 + 7);
}

inline kv::ChunkBuilder build(const Sample& sample) {
  kv::ChunkMeta meta;
  meta.fingerprint = sample.fingerprint;
  meta.numeric = sample.numeric;
  meta.parent_key = sample.parent;
  meta.prefix_key = kv::extend_prefix(sample.parent, sample.tokens);
  meta.content_key = kv::content_key(sample.fingerprint, "", sample.tokens);
  meta.shape = sample.shape;
  meta.flags = sample.flags;
  meta.pos_first = sample.pos_first;
  meta.tokens = sample.tokens;
  meta.n_strict = sample.n_strict < 0 ? meta.n_token() : static_cast<uint32_t>(sample.n_strict);
  meta.compute_s = sample.compute_s;
  kv::ChunkBuilder builder(std::move(meta));
  for (uint32_t layer = 0; layer < sample.shape.n_layer; ++layer) {
    for (kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
      auto cell = builder.cell(layer, part);
      for (size_t i = 0; i < cell.size(); ++i) cell[i] = value_of(layer, part, i);
    }
  }
  return builder;
}

inline kv::ChunkPtr sealed(const Sample& sample) { return build(sample).seal(); }

inline kv::ChunkId id_of(const Sample& sample) {
  return {kv::extend_prefix(sample.parent, sample.tokens), sample.numeric};
}

// The chunk of the same tokens that follows `parent`.
inline Sample after(const Sample& parent) {
  Sample next = parent;
  next.parent = id_of(parent).prefix_key;
  next.pos_first = parent.pos_first + static_cast<uint32_t>(parent.tokens.size());
  return next;
}

inline store::CellRange all_layers(const kv::KvShape& shape = kShape) { return {0, shape.n_layer}; }

// Accepts chunks of one model and notes whether every value it received was right.
class CheckingSink : public store::CellSink {
 public:
  explicit CheckingSink(Digest fingerprint = kModel) : fingerprint_(fingerprint) {}

  Result<void> begin(const kv::ChunkHeader& header) override {
    header_ = header;
    n_cell = 0;
    if (header.meta.fingerprint == fingerprint_) return {};
    return Error{Code::kInvalidArgument, "a chunk of another model"};
  }
  void cell(uint32_t layer, kv::Part part, std::span<const kv::Half> values) override {
    ++n_cell;
    layers.push_back(layer);
    if (values.size() != header_.meta.n_token() * header_.meta.shape.row_values(part)) ++n_wrong;
    for (size_t i = 0; i < values.size(); ++i) n_wrong += values[i] != value_of(layer, part, i);
  }
  const kv::ChunkHeader& header() const { return header_; }

  size_t n_cell = 0;
  size_t n_wrong = 0;
  std::vector<uint32_t> layers;

 private:
  Digest fingerprint_;
  kv::ChunkHeader header_;
};

}  // namespace headstart::samples
