#include "server/model_endpoints.h"

#include <utility>
#include <vector>

#include "server/answer_json.h"
#include "server/chat_fields.h"
#include "server/sampling_fields.h"

namespace headstart::server {
namespace {

std::optional<Token> token_of(const Json& value, const Completer& model) {
  // is_number_unsigned also says that it is not negative.
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto id = value.get<uint64_t>();
  if (id >= static_cast<uint64_t>(model.n_vocab())) return std::nullopt;
  return static_cast<Token>(id);
}

// A text, or a list of texts and token ids.
std::optional<std::vector<Token>> tokens_of(const Json& content, const Completer& model,
                                            bool add_special, bool parse_special) {
  if (content.is_string()) {
    return model.tokenize(content.get_ref<const std::string&>(), add_special, parse_special);
  }
  if (!content.is_array()) return std::nullopt;
  std::vector<Token> tokens;
  for (const Json& part : content) {
    if (part.is_string()) {
      const bool first = add_special && &part == &content.front();
      const auto more = model.tokenize(part.get_ref<const std::string&>(), first, parse_special);
      tokens.insert(tokens.end(), more.begin(), more.end());
    } else if (const auto token = token_of(part, model)) {
      tokens.push_back(*token);
    } else {
      return std::nullopt;
    }
  }
  return tokens;
}

// A piece may be a part of a UTF-8 sequence: then its bytes stand as numbers.
Json piece_of(const std::string& bytes) {
  return is_utf8(bytes) ? Json(bytes) : byte_values(bytes);
}

// What a request to /completion is sampled with that says nothing.
Json default_params() {
  const Json nothing = Json::object();
  Fields fields(nothing);
  SamplingFields sampling;
  parse_sampling(fields, /*native=*/true, sampling);
  const model::SamplingOptions& s = sampling.options;
  return {{"seed", -1},
          {"temperature", s.temperature},
          {"top_k", s.top_k},
          {"top_p", s.top_p},
          {"min_p", s.min_p},
          {"typical_p", s.typical_p},
          {"top_n_sigma", s.top_n_sigma},
          {"xtc_probability", s.xtc_probability},
          {"xtc_threshold", s.xtc_threshold},
          {"dynatemp_range", s.dynatemp_range},
          {"dynatemp_exponent", s.dynatemp_exponent},
          {"repeat_last_n", s.repeat_last_n},
          {"repeat_penalty", s.repeat_penalty},
          {"presence_penalty", s.presence_penalty},
          {"frequency_penalty", s.frequency_penalty},
          {"ignore_eos", s.ignore_eos},
          {"stop", Json::array()},
          {"n_predict", -1},
          {"n_probs", 0},
          {"stream", false}};
}

}  // namespace

ApiResult<std::string> tokenize(const Completer& model, std::string_view body) {
  const auto root = parse_object(body);
  if (!root) return tl::unexpected(root.error());
  Fields fields(*root);
  const bool add_special = fields.boolean("add_special").value_or(false);
  const bool parse_special = fields.boolean("parse_special").value_or(true);
  const bool with_pieces = fields.boolean("with_pieces").value_or(false);
  std::optional<std::vector<Token>> tokens(std::in_place);
  if (const Json* content = fields.find("content")) {
    tokens = tokens_of(*content, model, add_special, parse_special);
    if (!tokens) fields.fail("content", "must be a string, or a list of strings and token ids");
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  Json list = Json::array();
  for (const Token t : *tokens) {
    list.push_back(with_pieces ? Json{{"id", t}, {"piece", piece_of(model.piece(t))}} : Json(t));
  }
  return dump({{"tokens", std::move(list)}});
}

ApiResult<std::string> detokenize(const Completer& model, std::string_view body) {
  const auto root = parse_object(body);
  if (!root) return tl::unexpected(root.error());
  Fields fields(*root);
  std::string text;
  if (const Json* tokens = fields.list("tokens", kJsonValuesMax)) {
    for (const Json& value : *tokens) {
      const auto token = token_of(value, model);
      if (!token) return tl::unexpected(bad_field("tokens", "must hold token ids of this model"));
      text += model.piece(*token);
    }
  }
  if (fields.error()) return tl::unexpected(*fields.error());
  return dump({{"content", std::move(text)}});
}

ApiResult<std::string> apply_template(const Completer& model, std::string_view body) {
  const auto root = parse_object(body);
  if (!root) return tl::unexpected(root.error());
  Fields fields(*root);
  model::ChatInput chat;
  AnswerFormat format;
  parse_chat(fields, chat);
  parse_format(fields, format);
  if (fields.error()) return tl::unexpected(*fields.error());
  chat.json_schema = std::move(format.json_schema);
  auto prompt = model.apply(chat);
  if (!prompt.ok()) return tl::unexpected(from_engine(prompt.error()));
  return dump({{"prompt", std::move(prompt->text)}});
}

std::string props(const Completer& model, uint32_t n_slot) {
  const ModelInfo info = model.info();
  return dump(
      {{"default_generation_settings", {{"params", default_params()}, {"n_ctx", model.n_ctx()}}},
       {"total_slots", n_slot},
       {"model_alias", model.model_name()},
       {"model_path", info.file_name},
       {"modalities", {{"vision", false}, {"audio", false}, {"video", false}}},
       {"endpoint_slots", true},
       {"endpoint_props", false},
       {"endpoint_metrics", true},
       {"chat_template", info.chat_template},
       {"chat_template_caps", info.chat_template_caps},
       {"bos_token", info.bos_token},
       {"eos_token", info.eos_token},
       {"build_info", "headstart " HEADSTART_VERSION},
       {"is_sleeping", false}});
}

}  // namespace headstart::server
