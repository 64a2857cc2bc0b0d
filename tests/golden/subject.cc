#include "tests/golden/subject.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "exec/ggml_executor.h"
#include "exec/kv_shape.h"

namespace headstart::test {
namespace {

void check_ok(const Result<void>& result) { HS_CHECK(result.ok(), result.error().message.c_str()); }

}  // namespace

std::vector<std::vector<uint32_t>> blocks(uint32_t n_token, std::span<const uint32_t> sizes) {
  std::vector<std::vector<uint32_t>> result;
  uint32_t pos = 0;
  for (size_t i = 0; pos < n_token; ++i) {
    const uint32_t size = std::min(sizes[i % sizes.size()], n_token - pos);
    std::vector<uint32_t>& block = result.emplace_back(size);
    std::iota(block.begin(), block.end(), pos);
    pos += size;
  }
  return result;
}

Schedule token_block_major(uint32_t n_token, uint32_t n_layer, std::span<const uint32_t> sizes) {
  Schedule schedule;
  for (auto& block : blocks(n_token, sizes)) schedule.push_back({0, n_layer, std::move(block)});
  return schedule;
}

Schedule layer_major(uint32_t n_token, uint32_t n_layer, std::span<const uint32_t> sizes,
                     uint32_t n_layer_step) {
  Schedule schedule;
  for (uint32_t layer = 0; layer < n_layer; layer += n_layer_step) {
    const uint32_t end = std::min(layer + n_layer_step, n_layer);
    for (auto& block : blocks(n_token, sizes)) schedule.push_back({layer, end, std::move(block)});
  }
  return schedule;
}

Schedule staircase(uint32_t n_token, uint32_t n_layer, std::span<const uint32_t> sizes) {
  Schedule schedule;
  const auto cut = blocks(n_token, sizes);
  const auto n_block = static_cast<uint32_t>(cut.size());
  for (uint32_t diagonal = 0; diagonal < n_block + n_layer - 1; ++diagonal) {
    for (uint32_t block = 0; block < n_block; ++block) {
      if (diagonal < block || diagonal - block >= n_layer) continue;
      const uint32_t layer = diagonal - block;
      schedule.push_back({layer, layer + 1, cut[block]});
    }
  }
  return schedule;
}

Result<std::unique_ptr<Subject>> Subject::open(const std::filesystem::path& gguf,
                                               const SubjectOptions& options) {
  std::unique_ptr<Subject> subject(new Subject);
  HS_ASSIGN_OR_RETURN(subject->model_, model::Model::open(gguf));
  const model::ModelParams& params = subject->model_->params();
  subject->tables_ = std::make_unique<exec::RopeTables>(params);
  if (options.reference_numerics) {
    HS_RETURN_IF_ERROR(subject->model_->place_matrices());
    HS_ASSIGN_OR_RETURN(subject->executor_,
                        exec::GgmlExecutor::open(*subject->model_, *subject->tables_,
                                                 {.n_threads = options.n_threads,
                                                  .n_token_max = options.n_token_max,
                                                  .reference_numerics = true}));
  } else {
    HS_ASSIGN_OR_RETURN(subject->executor_,
                        exec::open_executor(*subject->model_, *subject->tables_,
                                            {.n_threads = options.n_threads,
                                             .n_token_max = options.n_token_max,
                                             .kernels = options.kernels,
                                             .prefill = options.prefill,
                                             .sparse_attention = options.sparse_attention}));
  }
  HS_ASSIGN_OR_RETURN(subject->kv_, kv::LiveKv::open(exec::kv_shape_of(params), options.type_k,
                                                     options.type_v, options.n_ctx));
  if (!options.reference_numerics) {
    subject->capture_ = std::make_unique<kv::Capture>(exec::kv_shape_of(params), options.n_ctx);
  }
  return subject;
}

void Subject::run(std::span<const Token> tokens, const Piece& piece, exec::HiddenStates& hidden,
                  size_t row_first, std::vector<float>& out) {
  std::vector<Token> of_piece;
  for (uint32_t pos : piece.positions) of_piece.push_back(tokens[pos]);
  const bool last_layer = piece.layer_end == n_layer();
  const auto first = std::ranges::lower_bound(piece.positions, row_first);
  const auto n_row = static_cast<size_t>(piece.positions.end() - first);

  exec::LayerStep step;
  step.layer_first = piece.layer_first;
  step.layer_end = piece.layer_end;
  step.tokens = of_piece;
  step.positions = piece.positions;
  step.hidden = &hidden;
  step.sequences = {{static_cast<uint32_t>(of_piece.size()), kv_.get(), capture_.get()}};
  std::vector<float> logits;
  if (last_layer && n_row > 0) {
    const bool only_last = row_first + 1 == tokens.size();
    step.want_logits = only_last ? exec::WantLogits::kLast : exec::WantLogits::kAll;
    step.logits = &logits;
  }
  check_ok(executor_->run(step));
  if (logits.empty()) return;
  const float* row = logits.data() + logits.size() - n_row * n_vocab();
  for (auto pos = first; pos != piece.positions.end(); ++pos, row += n_vocab()) {
    std::copy_n(row, n_vocab(),
                out.begin() + static_cast<ptrdiff_t>((*pos - row_first) * n_vocab()));
  }
}

std::vector<float> Subject::prefill(std::span<const Token> tokens, const Schedule& schedule,
                                    size_t n_row) {
  kv_->release(0);
  const size_t row_first = tokens.size() - n_row;
  std::vector<float> logits(n_row * n_vocab());
  exec::HiddenStates hidden(0, static_cast<uint32_t>(tokens.size()), model_->params().d_model);
  for (const Piece& piece : schedule) run(tokens, piece, hidden, row_first, logits);
  return logits;
}

void Subject::recompute(std::span<const Token> tokens, const Schedule& schedule) {
  exec::HiddenStates hidden(0, static_cast<uint32_t>(tokens.size()), model_->params().d_model);
  std::vector<float> none;
  for (const Piece& piece : schedule) run(tokens, piece, hidden, tokens.size(), none);
}

std::vector<float> Subject::decode(std::span<const Token> tokens, uint32_t pos_first,
                                   uint32_t n_column) {
  std::vector<float> all, logits;
  for (size_t i = 0; i < tokens.size(); i += n_column) {
    const auto columns = tokens.subspan(i, std::min<size_t>(n_column, tokens.size() - i));
    std::vector<uint32_t> positions(columns.size());
    std::iota(positions.begin(), positions.end(), pos_first + static_cast<uint32_t>(i));
    exec::LayerStep step;
    step.layer_end = n_layer();
    step.tokens = columns;
    step.positions = positions;
    step.numeric_class = exec::NumericClass::kDecode;
    step.sequences = {{static_cast<uint32_t>(columns.size()), kv_.get(), capture_.get()}};
    step.want_logits = exec::WantLogits::kAll;
    step.logits = &logits;
    check_ok(executor_->run(step));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

std::vector<std::byte> Subject::live_bytes(uint32_t n_token) const {
  std::vector<std::byte> bytes;
  for (uint32_t layer = 0; layer < n_layer(); ++layer) {
    for (kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
      const std::byte* first = kv_->row(layer, part, 0);
      bytes.insert(bytes.end(), first, first + n_token * kv_->row_bytes(part));
    }
  }
  return bytes;
}

std::vector<std::byte> Subject::captured_bytes(uint32_t n_token) {
  std::vector<std::byte> bytes;
  for (uint32_t layer = 0; layer < n_layer(); ++layer) {
    for (kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
      for (uint32_t pos = 0; pos < n_token; ++pos) {
        const auto row = std::as_bytes(
            std::span(capture_->row(layer, part, pos), kv_->shape().row_values(part)));
        bytes.insert(bytes.end(), row.begin(), row.end());
      }
    }
  }
  return bytes;
}

void Subject::load_captured(uint32_t n_token) {
  const kv::KvShape& shape = kv_->shape();
  std::vector<kv::Half> rotated(shape.row_values(kv::Part::kKey));
  for (uint32_t layer = 0; layer < n_layer(); ++layer) {
    for (uint32_t pos = 0; pos < n_token; ++pos) {
      kernels::rotate_token(tables_->of(layer), pos, shape.n_head_kv,
                            capture_->row(layer, kv::Part::kKey, pos), rotated.data());
      kv_->write(layer, kv::Part::kKey, pos, rotated);
      kv_->write(layer, kv::Part::kValue, pos,
                 {capture_->row(layer, kv::Part::kValue, pos), shape.row_values(kv::Part::kValue)});
    }
  }
}

void Subject::spoil(std::span<const uint32_t> positions) {
  constexpr int kFinite = 0x3c;  // as f16 and as q8_0
  for (uint32_t layer = 0; layer < n_layer(); ++layer) {
    for (kv::Part part : {kv::Part::kKey, kv::Part::kValue}) {
      for (uint32_t pos : positions) {
        std::memset(kv_->row(layer, part, pos), kFinite, kv_->row_bytes(part));
      }
    }
  }
}

}  // namespace headstart::test
