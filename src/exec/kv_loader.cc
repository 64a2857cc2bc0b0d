#include "exec/kv_loader.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace headstart::exec {
namespace {

class LiveKvSink final : public store::CellSink {
 public:
  LiveKvSink(const LoadTarget& target, const store::MatchedChunk& matched, uint32_t n_use,
             kv::Capture* capture)
      : target_(target), matched_(matched), n_use_(n_use), capture_(capture) {}

  // A chunk found under the right name may still be another's: ids and shape decide.
  Result<void> begin(const kv::ChunkHeader& header) override {
    const kv::ChunkMeta& meta = header.meta;
    const auto& expected = *matched_.chunk.tokens;
    const bool same = meta.fingerprint == target_.fingerprint &&
                      meta.shape == target_.kv->shape() && meta.tokens.size() >= n_use_ &&
                      expected.size() >= n_use_ &&
                      std::equal(expected.begin(), expected.begin() + n_use_, meta.tokens.begin());
    if (!same) return Error{Code::kCorrupt, "a stored chunk belongs to another prompt or model"};
    return {};
  }

  void cell(uint32_t layer, kv::Part part, std::span<const kv::Half> values) override {
    const kv::KvShape& shape = target_.kv->shape();
    const size_t row = shape.row_values(part);
    rotated_.resize(row);
    for (uint32_t i = 0; i < n_use_; ++i) {
      const uint32_t pos = matched_.pos_first + i;
      const auto raw = values.subspan(i * row, row);
      if (capture_ != nullptr) {
        std::memcpy(capture_->row(layer, part, pos), raw.data(), raw.size_bytes());
      }
      if (part == kv::Part::kKey) {
        kernels::rotate_token(target_.tables->of(layer), pos, shape.n_head_kv, raw.data(),
                              rotated_.data());
        target_.kv->write(layer, part, pos, rotated_);
      } else {
        target_.kv->write(layer, part, pos, raw);
      }
    }
  }

 private:
  const LoadTarget& target_;
  const store::MatchedChunk& matched_;
  const uint32_t n_use_;
  kv::Capture* capture_;
  std::vector<kv::Half> rotated_;
};

// The layers of which tokens below pos_end are still seen from position n_reuse on.
std::vector<store::CellRange> wanted_layers(const model::ModelParams& p, uint32_t pos_end,
                                            uint32_t n_reuse) {
  const bool in_window = p.n_window == 0 || pos_end + p.n_window > n_reuse + 1;
  std::vector<store::CellRange> ranges;
  for (uint32_t il = 0; il < p.n_layer; ++il) {
    if (!in_window && p.windowed[il]) continue;
    if (!ranges.empty() && ranges.back().layer_end == il) {
      ++ranges.back().layer_end;
    } else {
      ranges.push_back({il, il + 1});
    }
  }
  return ranges;
}

}  // namespace

Loaded load_prefix(store::Store& store, const store::Match& match, uint32_t n_reuse,
                   const LoadTarget& target, kv::Capture& capture) {
  Loaded loaded;
  for (const store::MatchedChunk& matched : match.chunks) {
    if (matched.pos_first >= n_reuse) break;
    const uint32_t n_use = std::min(matched.n_use, n_reuse - matched.pos_first);
    const bool whole = n_use == matched.chunk.tokens->size();
    const bool ends_here = matched.pos_first + n_use == n_reuse;
    const bool captured = ends_here && (!whole || (matched.chunk.flags & kv::kFlagTail) != 0);
    if (captured) capture.set_start(matched.pos_first);
    LiveKvSink sink(target, matched, n_use, captured ? &capture : nullptr);
    for (const store::CellRange& range :
         wanted_layers(*target.params, matched.pos_first + n_use, n_reuse)) {
      const auto done = store.load(matched, range, sink, kNoDeadline);
      if (!done.ok()) {
        spdlog::info("a stored chunk could not be used: {}", done.error().message);
        return loaded;
      }
      loaded.cells.push_back({matched.pos_first, n_use, range, std::string(*done)});
    }
    loaded.n_token = matched.pos_first + n_use;
    ++loaded.n_chunk;
    loaded.captured = captured;
  }
  return loaded;
}

}  // namespace headstart::exec
