#include "server/chat_fields.h"

#include <algorithm>
#include <set>
#include <utility>

#include "model/grammar.h"
#include "server/schema_check.h"

namespace headstart::server {
namespace {

std::string at(const std::string& list, size_t i) { return list + "[" + std::to_string(i) + "]"; }

// The text of one part of a content, or the error.
ApiResult<std::string> parse_part(const Json& part, const std::string& param) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (!part.is_object() || type == part.end() || !type->is_string()) {
    return tl::unexpected(bad_field(param, "must have a type"));
  }
  if (*type != "text" && *type != "input_text" && *type != "output_text" && *type != "refusal") {
    return tl::unexpected(
        unsupported_field(param, "is not text: this server reads text parts only"));
  }
  const char* name = *type == "refusal" ? "refusal" : "text";
  const auto value = part.find(name);
  if (value == part.end() || !value->is_string()) {
    return tl::unexpected(bad_field(param + "." + name, "must be a string"));
  }
  return value->get<std::string>();
}

// A string, a list of text parts, or null.
void parse_content(Fields& fields, model::ChatMessage& message) {
  const Json* content = fields.find("content");
  if (!content) return;
  if (content->is_string()) {
    message.content = content->get<std::string>();
    return;
  }
  if (!content->is_array() || content->size() > kPartsMax) {
    fields.fail("content", "must be a string or a list of parts");
    return;
  }
  for (size_t i = 0; i < content->size(); ++i) {
    auto text = parse_part((*content)[i], at(fields.path("content"), i));
    if (!text) return fields.set_error(text.error());
    message.parts.push_back(*std::move(text));
  }
  // One part is a string in another form, which every template takes.
  if (message.parts.size() == 1) {
    message.content = std::move(message.parts[0]);
    message.parts.clear();
  }
}

bool is_function(const Json& value) {
  const auto type = value.find("type");
  return type == value.end() || type->is_null() || *type == "function";
}

bool is_tool_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':' || c == '/';
  });
}

ApiResult<model::ToolCall> parse_tool_call(const Json& value, const std::string& param) {
  if (!value.is_object() || !is_function(value)) {
    return tl::unexpected(bad_field(param, "must be a call of type function"));
  }
  Fields fields(value, param + ".");
  model::ToolCall call;
  call.id = fields.text("id", 256);
  const Json* function = fields.object("function");
  if (!function) return tl::unexpected(bad_field(param + ".function", "must be an object"));
  Fields inner(*function, param + ".function.");
  call.name = inner.text("name", kToolNameBytesMax);
  if (call.name.empty()) inner.fail("name", "must not be empty");
  if (const Json* arguments = inner.find("arguments")) {
    call.arguments = arguments->is_string() ? arguments->get<std::string>() : dump(*arguments);
  }
  if (call.arguments.empty()) call.arguments = "{}";
  // Templates parse it, and recurse.
  if (check_shape(call.arguments)) inner.fail("arguments", "is nested too deeply");
  for (const Fields* f : {&fields, &inner}) {
    if (f->error()) return tl::unexpected(*f->error());
  }
  return call;
}

void parse_tool_calls(Fields& fields, model::ChatMessage& message) {
  const Json* calls = fields.list("tool_calls", kToolCallsMax);
  if (!calls || calls->empty()) return;
  if (message.role != "assistant") {
    fields.fail("tool_calls", "belongs to the role assistant only");
    return;
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    auto call = parse_tool_call((*calls)[i], at(fields.path("tool_calls"), i));
    if (!call) return fields.set_error(call.error());
    message.tool_calls.push_back(*std::move(call));
  }
}

ApiResult<model::ChatMessage> parse_message(const Json& value, const std::string& param) {
  if (!value.is_object()) return tl::unexpected(bad_field(param, "must be an object"));
  Fields fields(value, param + ".");
  model::ChatMessage message;
  message.role = fields.text("role", 32);
  // Templates know `system`; `developer` is the same thing under OpenAI's newer name.
  if (message.role == "developer") message.role = "system";
  if (!fields.error() && message.role != "system" && message.role != "user" &&
      message.role != "assistant" && message.role != "tool") {
    fields.fail("role", "must be system, developer, user, assistant or tool");
  }
  parse_content(fields, message);
  parse_tool_calls(fields, message);
  fields.refuse("function_call");
  message.reasoning = fields.text("reasoning_content", SIZE_MAX);
  message.name = fields.text("name", 256);
  message.tool_call_id = fields.text("tool_call_id", 256);
  if (fields.error()) return tl::unexpected(*fields.error());
  return message;
}

void parse_messages(Fields& fields, model::ChatInput& chat) {
  const Json* messages = fields.find("messages");
  if (!messages || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "must be a list of at least one message");
    return;
  }
  if (messages->size() > kMessagesMax) {
    fields.fail("messages", "must hold at most " + std::to_string(kMessagesMax));
    return;
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    auto message = parse_message((*messages)[i], at("messages", i));
    if (!message) return fields.set_error(message.error());
    chat.messages.push_back(*std::move(message));
  }
}

ApiResult<model::ChatTool> parse_tool(const Json& value, const std::string& param) {
  if (!value.is_object() || !is_function(value)) {
    return tl::unexpected(unsupported_field(param, "must be a tool of type function"));
  }
  Fields fields(value, param + ".");
  const Json* function = fields.object("function");
  if (!function) return tl::unexpected(bad_field(param + ".function", "must be an object"));
  Fields inner(*function, param + ".function.");
  model::ChatTool tool;
  tool.name = inner.text("name", kToolNameBytesMax);
  if (!inner.error() && !is_tool_name(tool.name)) {
    inner.fail("name", "must be letters, digits and _-.:/");
  }
  tool.description = inner.text("description", SIZE_MAX);
  const Json* parameters = inner.object("parameters");
  if (inner.error()) return tl::unexpected(*inner.error());
  tool.parameters = parameters ? dump(*parameters) : "{}";
  if (parameters) {
    if (auto error = check_schema(*parameters, inner.path("parameters"))) {
      return tl::unexpected(*error);
    }
  }
  return tool;
}

void parse_tools(Fields& fields, model::ChatInput& chat) {
  const Json* tools = fields.list("tools", kToolsMax);
  if (!tools) return;
  std::set<std::string> names;
  size_t n_byte = 0;
  for (size_t i = 0; i < tools->size(); ++i) {
    auto tool = parse_tool((*tools)[i], at("tools", i));
    if (!tool) return fields.set_error(tool.error());
    if (!names.insert(tool->name).second) {
      return fields.set_error(
          bad_field(at("tools", i) + ".function.name", "names an earlier tool too"));
    }
    n_byte += tool->parameters.size();
    chat.tools.push_back(*std::move(tool));
  }
  if (n_byte > kSchemaBytesMax) {
    fields.fail("tools", "has schemas of more than " + std::to_string(kSchemaBytesMax) + " bytes");
  }
}

// {"type": "function", "function": {"name": NAME}}
void parse_named_tool(Fields& fields, const Json& choice, model::ChatInput& chat) {
  std::string name;
  if (choice.is_object() && is_function(choice)) {
    Fields outer(choice);
    if (const Json* function = outer.object("function")) {
      name = Fields(*function).text("name", kToolNameBytesMax);
    }
  }
  if (name.empty()) {
    fields.fail("tool_choice", "must be auto, none, required or name a function");
    return;
  }
  const bool known = std::any_of(chat.tools.begin(), chat.tools.end(),
                                 [&](const auto& t) { return t.name == name; });
  if (!known) fields.fail("tool_choice", "names a function that is not among the tools");
  chat.tool_choice = model::ToolChoice::kRequired;
  chat.tool_name = std::move(name);
}

void parse_tool_choice(Fields& fields, model::ChatInput& chat) {
  const Json* choice = fields.find("tool_choice");
  if (!choice || *choice == "auto") return;
  if (*choice == "none") {
    chat.tool_choice = model::ToolChoice::kNone;
  } else if (*choice == "required") {
    chat.tool_choice = model::ToolChoice::kRequired;
    if (chat.tools.empty()) fields.fail("tool_choice", "is required, but there are no tools");
  } else {
    parse_named_tool(fields, *choice, chat);
  }
}

void parse_template_args(Fields& fields, model::ChatInput& chat) {
  const Json* args = fields.object("chat_template_kwargs");
  if (!args) return;
  if (args->size() > kTemplateArgsMax) {
    fields.fail("chat_template_kwargs", "has too many members");
    return;
  }
  for (const auto& [name, value] : args->items()) {
    std::string text = dump(value);
    if (name.size() + text.size() > kTemplateArgBytesMax) {
      fields.fail("chat_template_kwargs", "holds too long a value");
      return;
    }
    if (name == "enable_thinking") {
      if (!value.is_boolean()) {
        fields.fail("chat_template_kwargs", "must have true or false for enable_thinking");
        return;
      }
      chat.enable_thinking = value.get<bool>();
    }
    chat.template_kwargs[name] = std::move(text);
  }
}

void parse_reasoning(Fields& fields, model::ChatInput& chat) {
  const std::string format = fields.text("reasoning_format", 32);
  if (format == "none") {
    chat.reasoning_format = model::ReasoningFormat::kNone;
  } else if (format == "deepseek") {
    chat.reasoning_format = model::ReasoningFormat::kDeepseek;
  } else if (!format.empty() && format != "auto") {
    fields.fail("reasoning_format", "must be auto, none or deepseek");
  }
  const std::string effort = fields.text("reasoning_effort", 32);
  if (effort == "none") {
    chat.enable_thinking = false;
  } else if (!effort.empty()) {
    chat.template_kwargs["reasoning_effort"] = dump(Json(effort));
  }
}

// "" where response_format asks for no JSON.
std::string schema_of_response_format(Fields& fields) {
  const Json* format = fields.object("response_format");
  if (!format) return {};
  Fields own(*format, "response_format.");
  const std::string type = own.text("type", 64);
  const Json* holder = format;
  std::string path = "response_format.schema";
  if (type == "json_schema") {
    holder = own.object("json_schema");
    path = "response_format.json_schema.schema";
    if (!holder && !own.error()) own.fail("json_schema", "is missing");
  } else if (type != "json_object" && type != "text" && !type.empty()) {
    own.fail("type", "must be text, json_object or json_schema");
  }
  if (own.error()) fields.set_error(*own.error());
  if (own.error() || type == "text" || type.empty()) return {};
  const auto schema = holder->find("schema");
  if (schema == holder->end() || schema->is_null()) return R"({"type":"object"})";
  if (auto error = check_schema(*schema, path)) {
    fields.set_error(*error);
    return {};
  }
  return schema->empty() ? R"({"type":"object"})" : dump(*schema);
}

}  // namespace

void parse_chat(Fields& fields, model::ChatInput& chat) {
  parse_messages(fields, chat);
  parse_tools(fields, chat);
  parse_tool_choice(fields, chat);
  chat.parallel_tool_calls = fields.boolean("parallel_tool_calls");
  parse_template_args(fields, chat);
  parse_reasoning(fields, chat);
  fields.refuse("functions");
  fields.refuse("function_call");
  fields.refuse("continue_final_message");
}

void parse_format(Fields& fields, AnswerFormat& format) {
  format.json_schema = schema_of_response_format(fields);
  if (const Json* schema = fields.find("json_schema")) {
    if (!format.json_schema.empty()) {
      fields.fail("json_schema", "cannot stand beside a response_format of JSON");
    } else if (auto error = check_schema(*schema, "json_schema")) {
      fields.set_error(*error);
    }
    format.json_schema = dump(*schema);
  }
  format.gbnf = fields.text("grammar", model::kGrammarBytesMax);
  if (!format.gbnf.empty() && !format.json_schema.empty()) {
    fields.fail("grammar", "cannot stand beside a JSON schema: give one of them");
  }
}

}  // namespace headstart::server
