// headstart run: one prompt, one answer.
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/progress_bar.h"

namespace headstart::cli {
namespace {

constexpr size_t kPromptBytesMax = model::kTextBytesMax;

struct RunFlags {
  EngineFlags engine;
  std::optional<std::string> prompt;
  std::vector<std::string> files;
  std::vector<std::string> stops;
  uint32_t n_predict = 128;
  model::SamplingOptions sampling;
  std::string salt;
  bool chat = false;
  bool json = false;
};

Result<std::string> read_all(std::istream& in, const std::string& name) {
  std::string text;
  char block[65536];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    text.append(block, static_cast<size_t>(in.gcount()));
    if (text.size() > kPromptBytesMax) {
      return Error{Code::kInvalidArgument, name + " is larger than 64 MiB; that is no prompt"};
    }
  }
  if (in.bad()) return Error{Code::kIo, "cannot read " + name};
  return text;
}

// Files in their order, then -p; standard input where neither is given.
Result<std::string> read_prompt(const RunFlags& flags) {
  std::string text;
  for (const std::string& file : flags.files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) return Error{Code::kNotFound, "cannot open " + file + " (-f); is the path right?"};
    HS_ASSIGN_OR_RETURN(const std::string part, read_all(in, file));
    text += part;
  }
  text += flags.prompt.value_or("");
  if (text.size() > kPromptBytesMax) {
    return Error{Code::kInvalidArgument, "the prompt is larger than 64 MiB; that is no prompt"};
  }
  if (!flags.files.empty() || flags.prompt) return text;
  if (::isatty(STDIN_FILENO) == 1) {
    return Error{Code::kInvalidArgument,
                 "no prompt: give -p TEXT, -f FILE, or text on standard input"};
  }
  return read_all(std::cin, "standard input");
}

void print_json(const exec::Completion& c, const std::string& kernels) {
  nlohmann::ordered_json out = {
      {"text", c.text},
      {"tokens", c.tokens},
      {"finish_reason", c.finish == exec::FinishReason::kStop ? "stop" : "length"},
      {"n_prompt", c.n_prompt},
      {"n_cached", c.n_cached},
      {"n_cached_rounded", c.n_cached_rounded},
      {"n_proposed", c.n_proposed},
      {"n_accepted", c.n_accepted},
      {"ttft_ms", c.ttft_ms},
      {"wait_ms", c.wait_ms},
      {"lookup_ms", c.lookup_ms},
      {"load_ms", c.load_ms},
      {"compute_ms", c.compute_ms},
      {"prefill_tok_s", c.prefill_tok_s},
      {"decode_tok_s", c.decode_tok_s},
      {"kernels", kernels},
  };
  if (c.n_attention_causal > 0) {
    out["attention_blocks"] = {{"active", c.n_attention_active}, {"causal", c.n_attention_causal}};
  }
  std::printf("%s\n", out.dump().c_str());
}

Result<void> flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return Error{Code::kIo, "cannot write the answer to standard output"};
}

Result<void> run(const RunFlags& flags) {
  HS_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(flags));
  HS_ASSIGN_OR_RETURN(const exec::EngineOptions options, flags.engine.resolve());
  ProgressBar bar;
  HS_ASSIGN_OR_RETURN(const auto engine, exec::Engine::open(options, bar.fn()));
  bar.wipe();

  exec::CompletionRequest request;
  if (flags.chat) {
    HS_ASSIGN_OR_RETURN(const std::string text, engine->chat_template().render({{"user", prompt}}));
    request.tokens = engine->tokenizer().encode(text, true, true);
  } else {
    request.tokens = engine->tokenizer().encode(prompt, true, true);  // as llama.cpp's -p
  }
  request.n_predict = flags.n_predict;
  request.sampling = flags.sampling;
  request.stop = flags.stops;
  request.salt = flags.salt;
  request.progress = [&bar](std::string_view phase, double done) {
    if (phase == "prefill") bar.show(phase, done);  // the others are short, or show text
  };
  if (!flags.json) {
    request.on_text = [&](std::string_view piece) {
      bar.wipe();
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
      return true;
    };
  }
  HS_ASSIGN_OR_RETURN(const exec::Completion c, engine->complete(request));
  bar.wipe();
  if (flags.json) {
    print_json(c, engine->stats().kernels);
    return flush_output();
  }
  std::printf("\n");
  HS_RETURN_IF_ERROR(flush_output());
  if (::isatty(STDERR_FILENO) == 1) {
    std::fprintf(stderr,
                 "%u prompt tokens, %u reused · first token after %.0f ms · %.1f tokens/s\n",
                 c.n_prompt, c.n_cached, c.ttft_ms, c.decode_tok_s);
  }
  return {};
}

}  // namespace

int report(const Error& error) {
  std::fprintf(stderr, "headstart: %s\n", error.message.c_str());
  return error.code == Code::kInvalidArgument ? 2 : 1;
}

Command add_run(CLI::App& app) {
  auto flags = std::make_shared<RunFlags>();
  flags->engine.add_to(app);
  app.add_option("-p,--prompt", flags->prompt, "prompt; follows the files");
  app.add_option("-f,--file", flags->files, "file with prompt text; may be repeated")
      ->allow_extra_args(false);
  app.add_option("-n,--predict,--n-predict", flags->n_predict, "most tokens to generate");
  app.add_option("--temp", flags->sampling.temperature, "temperature; 0 is greedy");
  app.add_option("-s,--seed", flags->sampling.seed, "seed of the sampler");
  app.add_option("--top-k", flags->sampling.top_k, "keep the k likeliest tokens; 0: all");
  app.add_option("--top-p", flags->sampling.top_p, "keep the likeliest tokens up to this mass");
  app.add_option("--min-p", flags->sampling.min_p, "drop tokens below this share of the likeliest");
  app.add_option("--repeat-penalty", flags->sampling.repeat_penalty, "1 is none");
  app.add_option("--presence-penalty", flags->sampling.presence_penalty, "0 is none");
  app.add_option("--frequency-penalty", flags->sampling.frequency_penalty, "0 is none");
  app.add_option("--stop", flags->stops, "end the text before this; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--cache-salt", flags->salt, "reuse only what was stored with the same salt");
  app.add_flag("--chat", flags->chat, "put the prompt into the model's chat template");
  app.add_flag("--json", flags->json, "print one JSON object instead of text");
  return [flags] {
    const auto done = run(*flags);
    return done.ok() ? 0 : report(done.error());
  };
}

}  // namespace headstart::cli
