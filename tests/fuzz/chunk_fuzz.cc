// kv/chunk_format against any bytes: a header is refused, or everything that it says lies within
// the stated limits and within its file, and it is exactly what a builder would have written.
//
//   chunk_fuzz [runs] [seed]; the entry is libFuzzer's, so that it can be linked with that too
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "kv/chunk_format.h"
#include "tests/contract/sample_chunks.h"
#include "tests/fuzz/mutator.h"

using namespace headstart;

namespace {

// Whether the header was accepted; aborts if it should not have been.
bool accepts(std::span<const std::byte> bytes) {
  const size_t size = bytes.size();
  const auto claimed = kv::header_size(bytes);
  const auto header = kv::parse_header(bytes);
  if (!header.ok()) return false;

  HS_CHECK(claimed.ok() && *claimed == header->header_bytes, "both readers agree");
  HS_CHECK(*claimed <= size && *claimed <= kv::kHeaderBytesMax, "the header is there");
  HS_CHECK(header->file_bytes <= kv::kChunkBytesMax, "the file is bounded");
  const kv::ChunkMeta& meta = header->meta;
  HS_CHECK(meta.n_token() >= 1 && meta.n_token() <= kv::kChunkTokensMax, "tokens are bounded");
  HS_CHECK(meta.n_strict <= meta.n_token(), "strict tokens are tokens");
  HS_CHECK(meta.prefix_key == kv::extend_prefix(meta.parent_key, meta.tokens), "the key fits");
  uint64_t end = header->header_bytes;
  for (const kv::CellEntry& cell : header->cells) {
    HS_CHECK(cell.offset % 64 == 0 && cell.offset >= end, "cells are aligned and in order");
    HS_CHECK(cell.size_bytes <= header->file_bytes - cell.offset, "cells lie in the file");
    end = cell.offset + cell.size_bytes;
    if (end <= size) (void)kv::check_cell(cell, bytes.subspan(cell.offset, cell.size_bytes)).ok();
  }
  if (header->file_bytes > (1 << 16)) return true;  // building larger ones would take the time
  const auto rebuilt = kv::ChunkBuilder(meta).peek();
  HS_CHECK(rebuilt->header().file_bytes == header->file_bytes, "a builder lays it out alike");
  HS_CHECK(rebuilt->header().cells.back().offset == header->cells.back().offset,
           "a builder lays it out alike");
  return true;
}

std::vector<std::string> whole_chunks() {
  std::vector<std::string> chunks;
  for (const samples::Sample& sample :
       {samples::Sample{}, samples::Sample{.tokens = {1}, .shape = {1, 1, 1, 1}},
        samples::Sample{.tokens = samples::tokens_from(0, 144),
        .shape = {3, 2, 4, 6},
        .flags = kv::kFlagTail,
        .pos_first = 1000,
        .n_strict = 7}}) {
    const auto chunk = samples::sealed(sample);
    chunks.emplace_back(reinterpret_cast<const char*>(chunk->bytes().data()),
                        chunk->bytes().size());
  }
  return chunks;
}

// Numbers at which comparisons of sizes and counts go wrong, as they stand in a header.
std::vector<std::string> edge_numbers() {
  std::vector<std::string> words;
  for (uint64_t n : {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{144}, uint64_t{145},
                     uint64_t{1024}, uint64_t{1025}, uint64_t{0x7fffffff}, uint64_t{0xffffffff},
                     uint64_t{1} << 62, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 63}) {
    const std::string bytes(reinterpret_cast<const char*>(&n), sizeof(n));
    words.push_back(bytes.substr(0, 4));
    words.push_back(bytes);
  }
  return words;
}

void overwrite(std::string& input, size_t at, const void* bytes, size_t size) {
  if (at + size <= input.size()) std::memcpy(input.data() + at, bytes, size);
}

// Makes both digests that a header carries of itself right again, the prefix key and the checksum,
// so that mutations reach what stands behind them.
void repair(std::string& input) {
  uint32_t header_bytes, n_token;
  if (input.size() < kv::kFixedHeaderBytes) return;
  std::memcpy(&header_bytes, input.data() + 12, sizeof(header_bytes));
  std::memcpy(&n_token, input.data() + 32, sizeof(n_token));
  if (header_bytes < kv::kFixedHeaderBytes || header_bytes > input.size()) return;
  if (n_token > 0 && n_token <= (input.size() - kv::kFixedHeaderBytes) / sizeof(Token)) {
    Digest parent;
    std::memcpy(parent.data(), input.data() + 136, parent.size());
    std::vector<Token> tokens(n_token);
    std::memcpy(tokens.data(), input.data() + kv::kFixedHeaderBytes, n_token * sizeof(Token));
    const Digest key = kv::extend_prefix(parent, tokens);
    overwrite(input, 168, key.data(), key.size());
  }
  const uint64_t sum = checksum(std::as_bytes(std::span(input)).first(header_bytes - 8));
  overwrite(input, header_bytes - 8, &sum, sizeof(sum));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  accepts(std::as_bytes(std::span(data, size)));
  return 0;
}

int main(int argc, char** argv) {
  const uint64_t n_run = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20'000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  const auto words = edge_numbers();
  fuzz::Mutator mutator(seed, whole_chunks(), words);
  std::mt19937_64 random(seed);
  uint64_t n_accepted = 0;
  for (uint64_t i = 0; i < n_run; ++i) {
    std::string input = mutator.next();
    // A field of the header keeps its place only if what replaces it has its size.
    const std::string& word = words[random() % words.size()];
    if (random() % 2 == 0) overwrite(input, random() % 112 * 4, word.data(), word.size());
    if (random() % 4 != 0) repair(input);
    // A copy of exactly its size, so that AddressSanitizer sees every read beyond it.
    const std::vector<uint8_t> exact(input.begin(), input.end());
    n_accepted += accepts(std::as_bytes(std::span(exact)));
  }
  std::printf("%llu of %llu accepted\n", static_cast<unsigned long long>(n_accepted),
              static_cast<unsigned long long>(n_run));
  // Inputs that are all refused at the first byte would prove little.
  return n_accepted >= n_run / 50 ? 0 : 1;
}
