#include "server/completion_request.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace headstart::server {
namespace {

using nlohmann::json;

// Counts nesting and values before the parser allocates anything: 16 MiB of "[[[[" or "{},{},"
// would otherwise become gigabytes of tree.
std::optional<ApiError> check_shape(std::string_view body) {
  size_t depth = 0, values = 1;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      ++values;
      if (++depth > kJsonDepthMax) return bad_field("", "the JSON is nested too deeply");
    } else if (c == ']' || c == '}') {
      if (depth > 0) --depth;
    } else if (c == ',') {
      ++values;
    }
    if (values > kJsonValuesMax) return bad_field("", "the JSON holds too many values");
  }
  return std::nullopt;
}

// The fields of one object. The first error is kept and later reads change nothing, so that a
// parser reads straight through and asks once.
class Fields {
 public:
  Fields(const json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Null where the field is absent or null.
  const json* find(const char* name) const {
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  std::optional<double> number(const char* name, double min, double max) {
    const json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_number()) return fail(name, "must be a number");
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;  // false for NaN too
    return fail(name, "must lie between " + short_text(min) + " and " + short_text(max));
  }

  std::optional<int64_t> integer(const char* name, int64_t min, int64_t max) {
    const json* value = find(name);
    if (!value) return std::nullopt;
    if (!value->is_number()) return fail(name, "must be an integer");
    int64_t integer = 0;
    bool fits = true;
    if (value->is_number_float()) {  // 16.0 is an integer to JavaScript, and so to JSON
      const double number = value->get<double>();
      if (number != std::trunc(number)) {
        return fail(name, "must be an integer");
      }
      fits = std::fabs(number) < 9.0e18;
      if (fits) integer = static_cast<int64_t>(number);
    } else if (value->is_number_unsigned()) {
      fits = value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
      integer = fits ? static_cast<int64_t>(value->get<uint64_t>()) : 0;
    } else {
      integer = value->get<int64_t>();
    }
    if (fits && integer >= min && integer <= max) return integer;
    return fail(name, "must lie between " + std::to_string(min) + " and " + std::to_string(max));
  }

  bool boolean(const char* name) {
    const json* value = find(name);
    if (!value) return false;
    if (value->is_boolean()) return value->get<bool>();
    fail(name, "must be true or false");
    return false;
  }

  std::string text(const char* name, size_t bytes_max) {
    const json* value = find(name);
    if (!value) return {};
    if (!value->is_string()) {
      fail(name, "must be a string");
      return {};
    }
    if (value->get_ref<const std::string&>().size() <= bytes_max) return value->get<std::string>();
    fail(name, "must be at most " + std::to_string(bytes_max) + " bytes");
    return {};
  }

  const json* object(const char* name) {
    const json* value = find(name);
    if (!value || value->is_object()) return value;
    fail(name, "must be an object");
    return nullptr;
  }

  // Refuses a field that holds anything but what asks for nothing.
  void refuse(const char* name) {
    const json* value = find(name);
    if (!value) return;
    const bool asks_nothing =
        (value->is_boolean() && !value->get<bool>()) ||
        (value->is_string() && value->get_ref<const std::string&>().empty()) ||
        (value->is_structured() && value->empty());
    if (!asks_nothing) set_error(unsupported_field(path(name), "is not supported"));
  }

  std::string path(const char* name) const { return prefix_ + name; }
  std::nullopt_t fail(const char* name, std::string message) {
    set_error(bad_field(path(name), std::move(message)));
    return std::nullopt;
  }
  void set_error(ApiError error) {
    if (!error_) error_ = std::move(error);
  }
  const std::optional<ApiError>& error() const { return error_; }

 private:
  static std::string short_text(double number) { return json(number).dump(); }

  const json& object_;
  std::string prefix_;
  std::optional<ApiError> error_;
};

// A string, a list of text parts, or null.
ApiResult<std::string> parse_content(const json& content, const std::string& param) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return tl::unexpected(bad_field(param, "must be a string or a list of parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string part_param = param + "[" + std::to_string(i) + "]";
    const auto type = part.is_object() ? part.find("type") : part.end();
    if (!part.is_object() || type == part.end() || !type->is_string()) {
      return tl::unexpected(bad_field(part_param, "must have a type"));
    }
    if (*type != "text") {
      return tl::unexpected(
          unsupported_field(part_param, "is not text: this server reads text parts only"));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) {
      return tl::unexpected(bad_field(part_param + ".text", "must be a string"));
    }
    if (!text.empty()) text += '\n';  // as llama.cpp joins parts
    text += value->get_ref<const std::string&>();
  }
  return text;
}

ApiResult<model::ChatMessage> parse_message(const json& value, const std::string& param) {
  if (!value.is_object()) {
    return tl::unexpected(bad_field(param, "must be an object"));
  }
  Fields fields(value, param + ".");
  model::ChatMessage message;
  message.role = fields.text("role", 32);
  if (fields.error()) return tl::unexpected(*fields.error());
  // Templates know `system`; `developer` is the same thing under OpenAI's newer name.
  if (message.role == "developer") message.role = "system";
  if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
      message.role != "tool") {
    return tl::unexpected(
        bad_field(param + ".role", "must be system, developer, user, assistant or tool"));
  }
  fields.refuse("tool_calls");
  fields.refuse("function_call");
  if (fields.error()) return tl::unexpected(*fields.error());
  if (const json* content = fields.find("content")) {
    auto text = parse_content(*content, param + ".content");
    if (!text) return tl::unexpected(text.error());
    message.content = std::move(*text);
  }
  return message;
}

void parse_messages(Fields& fields, ApiRequest& request) {
  const json* messages = fields.find("messages");
  if (!messages || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "must be a list of at least one message");
    return;
  }
  if (messages->size() > kMessagesMax) {
    fields.fail("messages", "must hold at most " + std::to_string(kMessagesMax));
    return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    auto message = parse_message((*messages)[i], "messages[" + std::to_string(i) + "]");
    if (!message) return fields.set_error(message.error());
    request.messages.push_back(std::move(*message));
  }
}

// A text, a list of token ids, or a list that holds one of these.
void parse_prompt(Fields& fields, ApiRequest& request) {
  const json* prompt = fields.find("prompt");
  if (!prompt) {
    fields.fail("prompt", "is missing");
    return;
  }
  if (prompt->is_array() && !prompt->empty() && !prompt->front().is_number()) {
    if (prompt->size() > 1) {
      return fields.set_error(unsupported_field("prompt", "must be one prompt"));
    }
    prompt = &prompt->front();
  }
  if (prompt->is_string()) {
    request.prompt = prompt->get<std::string>();
    return;
  }
  std::vector<Token> tokens;
  bool good = prompt->is_array();
  for (size_t i = 0; good && i < prompt->size(); ++i) {
    const json& token = (*prompt)[i];
    // is_number_unsigned also says that it is not negative.
    good = token.is_number_unsigned() && token.get<uint64_t>() <= INT32_MAX;
    if (good) tokens.push_back(static_cast<Token>(token.get<uint64_t>()));
  }
  if (!good) {
    fields.fail("prompt", "must be a string or a list of token ids");
    return;
  }
  request.prompt = std::move(tokens);
}

void parse_stop(Fields& fields, ApiRequest& request) {
  const json* stop = fields.find("stop");
  if (!stop) return;
  const json list = stop->is_string() ? json::array({*stop}) : *stop;
  if (!list.is_array() || list.size() > kStopsMax) {
    fields.fail("stop",
                "must be a string or a list of at most " + std::to_string(kStopsMax) + " strings");
    return;
  }
  for (const json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().size() > kStopBytesMax) {
      fields.fail("stop",
                  "must hold strings of at most " + std::to_string(kStopBytesMax) + " bytes");
      return;
    }
    // Some clients send "" for none; it must not end every answer at once.
    if (!item.get_ref<const std::string&>().empty()) {
      request.stop.push_back(item.get<std::string>());
    }
  }
}

void parse_logit_bias(Fields& fields, ApiRequest& request) {
  const json* biases = fields.object("logit_bias");
  if (!biases) return;
  if (biases->size() > kLogitBiasMax) {
    fields.fail("logit_bias", "must hold at most " + std::to_string(kLogitBiasMax) + " tokens");
    return;
  }
  for (const auto& [key, value] : biases->items()) {
    const bool digits =
        !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    const double bias = value.is_number() ? value.get<double>() : NAN;
    if (!digits || !(bias >= -100.0 && bias <= 100.0)) {
      fields.fail("logit_bias", "must map token ids to numbers from -100 to 100");
      return;
    }
    request.sampling.logit_bias.emplace_back(static_cast<Token>(std::stol(key)),
                                             static_cast<float>(bias));
  }
}

void parse_sampling(Fields& fields, ApiRequest& request) {
  model::SamplingOptions& s = request.sampling;
  s.temperature = static_cast<float>(fields.number("temperature", 0, 10).value_or(1.0));
  s.top_p = static_cast<float>(fields.number("top_p", 0, 1).value_or(1.0));
  s.top_k = static_cast<int32_t>(
      std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(40)));
  s.min_p = static_cast<float>(fields.number("min_p", 0, 1).value_or(0.05));
  s.presence_penalty = static_cast<float>(fields.number("presence_penalty", -2, 2).value_or(0));
  s.frequency_penalty = static_cast<float>(fields.number("frequency_penalty", -2, 2).value_or(0));
  s.repeat_penalty = static_cast<float>(fields.number("repeat_penalty", 0.1, 10).value_or(1));
  parse_logit_bias(fields, request);

  // -1 asks for a random seed, as in llama.cpp.
  if (const auto seed = fields.integer("seed", INT64_MIN, INT64_MAX); seed && *seed != -1) {
    const auto bits = static_cast<uint64_t>(*seed);
    const auto folded = static_cast<uint32_t>(bits ^ (bits >> 32));
    // libllama's samplers read this one value as "choose one".
    request.seed = folded == UINT32_MAX ? UINT32_MAX - 1 : folded;
  }
}

void parse_length(Fields& fields, ApiRequest& request) {
  const bool chat = request.endpoint == Endpoint::kChat;
  const char* name =
      chat && fields.find("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  const auto n = fields.integer(name, -1, INT32_MAX);
  if (n) {
    request.max_tokens = *n < 0 ? kRestOfContext : static_cast<uint32_t>(*n);
  } else {
    request.max_tokens = chat ? kRestOfContext : 16;  // both as OpenAI's
  }
}

void parse_extension(Fields& fields, ApiRequest& request) {
  request.salt = fields.text("cache_salt", kSaltBytesMax);
  const json* extension = fields.object("headstart");
  if (!extension) return;
  Fields own(*extension, "headstart.");
  if (const json* reuse = own.find("reuse")) {
    if (*reuse == "off") {
      request.reuse = store::ReuseMode::kOff;
    } else if (*reuse == "strict") {
      request.reuse = store::ReuseMode::kStrict;
    } else if (*reuse == "exact") {
      request.reuse = store::ReuseMode::kExact;
    } else {
      own.fail("reuse", "must be off, strict or exact");
    }
  }
  if (const auto n = own.integer("n_propose_max", 0, UINT32_MAX)) {
    request.n_propose_max = static_cast<uint32_t>(*n);
  }
  if (own.error()) fields.set_error(*own.error());
}

void parse_stream(Fields& fields, ApiRequest& request) {
  request.stream = fields.boolean("stream");
  if (const json* options = fields.object("stream_options")) {
    Fields own(*options, "stream_options.");
    request.include_usage = own.boolean("include_usage");
    if (own.error()) fields.set_error(*own.error());
  }
}

// What would change the answer and cannot be honoured.
void refuse_unsupported(Fields& fields) {
  if (fields.integer("n", 1, INT32_MAX).value_or(1) != 1) {
    fields.set_error(unsupported_field("n", "must be 1: one answer for each request"));
  }
  if (fields.integer("best_of", 1, INT32_MAX).value_or(1) != 1) {
    fields.set_error(unsupported_field("best_of", "must be 1"));
  }
  fields.refuse("echo");
  fields.refuse("suffix");
  fields.refuse("logprobs");
  if (fields.integer("top_logprobs", 0, INT32_MAX).value_or(0) != 0) {
    fields.set_error(unsupported_field("top_logprobs", "is not supported"));
  }
  fields.refuse("tools");
  fields.refuse("functions");
  fields.refuse("grammar");
  fields.refuse("json_schema");
  const json* choice = fields.find("tool_choice");
  if (choice && *choice != "none" && *choice != "auto") {
    fields.set_error(unsupported_field("tool_choice", "is not supported"));
  }
  if (const json* format = fields.object("response_format")) {
    const auto type = format->find("type");
    if (type != format->end() && !type->is_null() && *type != "text") {
      fields.set_error(unsupported_field("response_format", "must be of type text"));
    }
  }
}

}  // namespace

ApiResult<ApiRequest> parse_request(Endpoint endpoint, std::string_view body) {
  if (auto error = check_shape(body)) return tl::unexpected(*error);
  const json root = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return tl::unexpected(bad_field("", "the body must be one JSON object in UTF-8"));
  }
  Fields fields(root);
  ApiRequest request;
  request.endpoint = endpoint;
  if (endpoint == Endpoint::kChat) {
    parse_messages(fields, request);
  } else {
    parse_prompt(fields, request);
  }
  parse_length(fields, request);
  parse_sampling(fields, request);
  parse_stop(fields, request);
  parse_stream(fields, request);
  parse_extension(fields, request);
  refuse_unsupported(fields);
  if (fields.error()) return tl::unexpected(*fields.error());
  return request;
}

}  // namespace headstart::server
