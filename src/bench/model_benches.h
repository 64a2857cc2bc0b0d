// bench/model_benches.h: the benchmarks that run a model.
#pragma once

#include "bench/report.h"

namespace headstart::bench {

// Prefill of 512 to 8000 tokens, and of 16 after 2048; decoding 64 tokens after 512 and 8000:
// against libllama, same threads, flash attention on, batches of 512.
Result<std::vector<Row>> bench_prefill(const BenchOptions& options);
Result<std::vector<Row>> bench_decode(const BenchOptions& options);
// Products of 512 rows and attention over 8000 tokens, each alone, against multiply-adds in
// registers; the same attention against ggml's.
Result<std::vector<Row>> bench_attention(const BenchOptions& options);
// Suffixes of 1 to 512 tokens and decoding, with each exact kind of operands against ggml's
// executor: what is found is kept for this model and machine, and `--kernels auto` follows it.
Result<std::vector<Row>> bench_calibrate(const BenchOptions& options);
// KL of prefill and decode to f32 arithmetic on the same weights, against libllama's.
Result<std::vector<Row>> bench_accuracy(const BenchOptions& options);
// Text that quotes its prompt, and text that does not: decoding with prompt lookup against without,
// the same tokens checked; and how many of the proposed tokens were accepted.
Result<std::vector<Row>> bench_lookup(const BenchOptions& options);
// Block-sparse prefill of 8000 tokens of text against dense: time, key blocks, KL.
Result<std::vector<Row>> bench_sparse(const BenchOptions& options);
// Four streams at once, a long prompt beside a running stream, eight requests with one cold prefix:
// each against one request alone, four streams against libllama's four too. Wall time.
Result<std::vector<Row>> bench_parallel(const BenchOptions& options);
// The first token of a warm prompt of 2048 tokens over HTTP, against the engine asked itself.
Result<std::vector<Row>> bench_overhead(const BenchOptions& options);
// 2000 mixed requests, or as many as --repeat says, a third cancelled at random. Errors: kCorrupt
// where an answer is not the one that its request gets alone.
Result<std::vector<Row>> bench_soak(const BenchOptions& options);
// Prefill of 2048 tokens in a process that may hold less than its weights: read-ahead on against
// off, against libllama, and against no limit; the same bits checked. Without root
// the page cache is cold, but nothing is limited.
Result<std::vector<Row>> bench_out_of_core(const BenchOptions& options);

// About 4000 tokens of documents: another question and the identical prompt, in the same process
// and in a new one, warm and cold page cache: time to first token against the own cold run.
Result<std::vector<Row>> bench_reuse(const BenchOptions& options);
// A cold prompt of 2048 tokens with all that storing it costs, against store off.
Result<std::vector<Row>> bench_store(const BenchOptions& options);
// Chunks from warm page cache into the live cache on one thread, checksums and RoPE included,
// against memcpy of as many bytes.
Result<std::vector<Row>> bench_load(const BenchOptions& options);

}  // namespace headstart::bench
