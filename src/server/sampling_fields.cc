#include "server/sampling_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/engine.h"

namespace headstart::server {
namespace {

void parse_stop(Fields& fields, SamplingFields& out) {
  const Json* stop = fields.find("stop");
  if (!stop) return;
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (!list.is_array() || list.size() > exec::kStopsMax) {
    fields.fail("stop", "must be a string or a list of at most " + std::to_string(exec::kStopsMax) +
                            " strings");
    return;
  }
  for (const Json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > kStopBytesMax) {
      fields.fail("stop",
                  "must hold strings of at most " + std::to_string(kStopBytesMax) + " bytes");
      return;
    }
    // Some clients send "" for none; it must not end every answer at once.
    if (!item.get_ref<const std::string&>().empty()) out.stop.push_back(item.get<std::string>());
  }
}

// A number from -100 to 100, or false: never.
std::optional<float> bias_of(const Json& value) {
  if (value.is_boolean() && !value.get<bool>()) return -std::numeric_limits<float>::infinity();
  const double bias = value.is_number() ? value.get<double>() : NAN;
  if (!(bias >= -100.0 && bias <= 100.0)) return std::nullopt;
  return static_cast<float>(bias);
}

std::optional<Token> token_of(const std::string& digits) {
  if (digits.empty() || digits.size() > 9 ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return static_cast<Token>(std::stol(digits));
}

// OpenAI's form: {"TOKEN": bias}.
bool add_biases(const Json& map, SamplingFields& out) {
  for (const auto& [key, value] : map.items()) {
    const auto token = token_of(key);
    const auto bias = bias_of(value);
    if (!token || !bias) return false;
    out.options.logit_bias.emplace_back(*token, *bias);
  }
  return true;
}

// llama-server's form: [[token or text, bias]].
bool add_bias(const Json& pair, SamplingFields& out) {
  if (!pair.is_array() || pair.size() != 2) return false;
  const auto bias = bias_of(pair[1]);
  if (!bias) return false;
  if (pair[0].is_string()) {
    const std::string& text = pair[0].get_ref<const std::string&>();
    if (text.size() > kBiasTextBytesMax) return false;
    out.text_bias.emplace_back(text, *bias);
    return true;
  }
  // is_number_unsigned also says that it is not negative.
  if (!pair[0].is_number_unsigned() || pair[0].get<uint64_t>() > INT32_MAX) return false;
  out.options.logit_bias.emplace_back(static_cast<Token>(pair[0].get<uint64_t>()), *bias);
  return true;
}

void parse_logit_bias(Fields& fields, SamplingFields& out) {
  const Json* biases = fields.find("logit_bias");
  if (!biases) return;
  if (!biases->is_structured() || biases->size() > model::kLogitBiasMax) {
    fields.fail("logit_bias", "must be an object or a list of at most " +
                                  std::to_string(model::kLogitBiasMax) + " entries");
    return;
  }
  const bool good = biases->is_object()
                        ? add_biases(*biases, out)
                        : std::all_of(biases->begin(), biases->end(),
                                      [&](const Json& pair) { return add_bias(pair, out); });
  if (!good) {
    fields.fail("logit_bias",
                "must map token ids to numbers from -100 to 100, or list [token or text, number]");
  }
}

void parse_seed(Fields& fields, SamplingFields& out) {
  // -1 asks for a random seed, as in llama.cpp.
  const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX);
  if (!seed || *seed == -1) return;
  const auto bits = static_cast<uint64_t>(*seed);
  const auto folded = static_cast<uint32_t>(bits ^ (bits >> 32));
  // libllama's samplers read this one value as "choose one".
  out.seed = folded == UINT32_MAX ? UINT32_MAX - 1 : folded;
}

// llama-server's samplers that are not here; each is off at the number that stands beside it.
void refuse_others(Fields& fields) {
  fields.refuse_unless("mirostat", 0);
  fields.refuse_unless("dry_multiplier", 0);
  fields.refuse_unless("adaptive_target", -1);
  fields.refuse_unless("min_keep", 0);
  fields.refuse("samplers");
}

}  // namespace

void parse_sampling(Fields& fields, bool native, SamplingFields& out) {
  model::SamplingOptions& s = out.options;
  const auto number = [&](const char* name, double min, double max, double absent) {
    return static_cast<float>(fields.number(name, min, max).value_or(absent));
  };
  s.temperature = number("temperature", 0, 10, native ? 0.8 : 1.0);
  s.top_p = number("top_p", 0, 1, native ? 0.95 : 1.0);
  s.top_k = static_cast<int32_t>(
      std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(40)));
  s.min_p = number("min_p", 0, 1, 0.05);
  s.typical_p = number("typical_p", 0, 1, 1);
  s.top_n_sigma = number("top_n_sigma", -1, 100, -1);
  s.xtc_probability = number("xtc_probability", 0, 1, 0);
  s.xtc_threshold = number("xtc_threshold", 0, 1, 0.1);
  s.dynatemp_range = number("dynatemp_range", 0, 10, 0);
  s.dynatemp_exponent = number("dynatemp_exponent", 0, 10, 1);
  s.presence_penalty = number("presence_penalty", -2, 2, 0);
  s.frequency_penalty = number("frequency_penalty", -2, 2, 0);
  s.repeat_penalty = number("repeat_penalty", 0.1, 10, 1);
  // -1 is the whole context in llama-server; admission knows how much that is.
  s.repeat_last_n = static_cast<int32_t>(fields.integer("repeat_last_n", -1, 1 << 20).value_or(64));
  s.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  parse_seed(fields, out);
  parse_stop(fields, out);
  parse_logit_bias(fields, out);
  refuse_others(fields);
}

}  // namespace headstart::server
