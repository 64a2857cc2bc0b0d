#include "model/chat_template.h"

#include <chat.h>
#include <llama.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "model/llama_log.h"

namespace headstart::model {
namespace {

common_chat_msg to_library(const ChatMessage& m) {
  common_chat_msg out;
  out.role = m.role;
  out.content = m.content;
  for (const std::string& part : m.parts) out.content_parts.push_back({"text", part});
  for (const ToolCall& call : m.tool_calls) {
    out.tool_calls.push_back({call.name, call.arguments, call.id});
  }
  out.reasoning_content = m.reasoning;
  out.tool_name = m.name;
  out.tool_call_id = m.tool_call_id;
  return out;
}

common_chat_tool_choice to_library(ToolChoice choice) {
  switch (choice) {
    case ToolChoice::kAuto: return COMMON_CHAT_TOOL_CHOICE_AUTO;
    case ToolChoice::kNone: return COMMON_CHAT_TOOL_CHOICE_NONE;
    case ToolChoice::kRequired: break;
  }
  return COMMON_CHAT_TOOL_CHOICE_REQUIRED;
}

common_reasoning_format to_library(ReasoningFormat format) {
  switch (format) {
    case ReasoningFormat::kNone: return COMMON_REASONING_FORMAT_NONE;
    case ReasoningFormat::kAuto: return COMMON_REASONING_FORMAT_AUTO;
    case ReasoningFormat::kDeepseek: break;
  }
  return COMMON_REASONING_FORMAT_DEEPSEEK;
}

common_chat_templates_inputs to_library(const ChatInput& input, bool parallel_tool_calls) {
  common_chat_templates_inputs out;
  for (const ChatMessage& m : input.messages) out.messages.push_back(to_library(m));
  for (const ChatTool& t : input.tools) out.tools.push_back({t.name, t.description, t.parameters});
  out.tool_choice = to_library(input.tool_choice);
  out.parallel_tool_calls = input.parallel_tool_calls.value_or(parallel_tool_calls);
  out.json_schema = input.json_schema;
  out.reasoning_format = to_library(input.reasoning_format);
  out.enable_thinking = input.enable_thinking;
  out.chat_template_kwargs = input.template_kwargs;
  out.use_jinja = true;
  out.add_generation_prompt = true;
  return out;
}

ChatParser parser_of(const common_chat_params& params, ReasoningFormat format) {
  auto out = std::make_shared<common_chat_parser_params>(params);
  out->reasoning_format = to_library(format);
  if (!params.parser.empty()) out->parser.load(params.parser);
  return ChatParser(std::move(out));
}

GrammarTrigger to_trigger(const common_grammar_trigger& t) {
  switch (t.type) {
    case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN:
    case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: return {t.value, false};
    case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: return {t.value, true};
    case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: break;
  }
  return {(t.value.starts_with('^') ? "" : "^") + t.value + (t.value.ends_with('$') ? "" : "$"),
          true};
}

ChatPrompt to_prompt(common_chat_params params, ReasoningFormat format) {
  ChatPrompt out;
  out.parser = parser_of(params, format);
  out.text = std::move(params.prompt);
  out.gbnf = std::move(params.grammar);
  out.lazy = params.grammar_lazy;
  for (const auto& t : params.grammar_triggers) out.triggers.push_back(to_trigger(t));
  out.generation_prompt = std::move(params.generation_prompt);
  out.shown = std::move(params.preserved_tokens);
  out.stops = std::move(params.additional_stops);
  out.thinking_start = std::move(params.thinking_start_tag);
  out.thinking_ends = std::move(params.thinking_end_tags);
  return out;
}

// Whether the template's answers are nothing but their text, as most are.
bool is_plain(const common_chat_params& params, const ChatParser& parser) {
  if (params.supports_thinking || !params.additional_stops.empty()) return false;
  const std::string probe = "A <b> {\"c\": [1]}\n";
  const auto message = parser.parse(probe, /*partial=*/false);
  return message.ok() && message->content == probe && message->reasoning.empty() &&
         message->tool_calls.empty();
}

bool asks_for_calls(const ChatInput& input) {
  return !input.tools.empty() && input.tool_choice != ToolChoice::kNone;
}

}  // namespace

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::open(const llama_model* model) {
  return init(model, "");
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::of(const std::string& jinja) {
  return init(nullptr, jinja);
}

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::init(const llama_model* model,
                                                         const std::string& jinja) {
  quiet_libllama();
  try {
    common_chat_templates_ptr templates = common_chat_templates_init(model, jinja);
    return std::unique_ptr<ChatTemplate>(new ChatTemplate(templates.release()));
  } catch (const std::exception& e) {
    return Error{Code::kUnsupported,
                 std::string("the model's chat template does not parse: ") + e.what()};
  }
}

ChatTemplate::ChatTemplate(common_chat_templates* templates) : templates_(templates) {
  const auto caps = capabilities();
  const auto parallel = caps.find("supports_parallel_tool_calls");
  parallel_tool_calls_ = parallel != caps.end() && parallel->second;
  try {
    ChatInput probe;
    probe.messages = {{"system", "a"}, {"user", "b"}, {"assistant", "c"}, {"user", "d"}};
    auto inputs = to_library(probe, false);
    const auto params = common_chat_templates_apply(templates_, inputs);
    inputs.force_pure_content = true;
    plain_ = is_plain(params, parser_of(params, ReasoningFormat::kAuto)) &&
             common_chat_templates_apply(templates_, inputs).prompt == params.prompt;
  } catch (const std::exception&) {
    plain_ = false;  // a template that refuses these messages says so to each request
  }
}

ChatTemplate::~ChatTemplate() { common_chat_templates_free(templates_); }

Result<ChatPrompt> ChatTemplate::apply(const ChatInput& input) const {
  try {
    auto library = to_library(input, parallel_tool_calls_);
    const bool plain = plain_ && !asks_for_calls(input) && input.json_schema.empty();
    // The library would find out anew what answers look like, which takes longer than rendering.
    library.force_pure_content = plain && input.tools.empty();
    ChatPrompt out =
        to_prompt(common_chat_templates_apply(templates_, library), input.reasoning_format);
    if (plain) out.parser = ChatParser();
    if (input.tool_choice != ToolChoice::kRequired) return out;
    if (out.gbnf.empty()) {
      return Error{Code::kInvalidArgument,
                   "this model's chat template has no tool calls: leave tool_choice at auto"};
    }
    return require_call(input, std::move(out));
  } catch (const std::exception& e) {
    return Error{Code::kInvalidArgument,
                 "the chat template refuses this: " + std::string(e.what()).substr(0, 500)};
  }
}

// Where a call is required, the library lets any text come before it. A small model then talks
// until its tokens are used up, so the prompt itself begins the call. A model that thinks first is
// left to do so.
Result<ChatPrompt> ChatTemplate::require_call(const ChatInput& input, ChatPrompt prompt) const {
  auto library = to_library(input, parallel_tool_calls_);
  if (!input.tool_name.empty()) {
    // The prompt lists every tool, so that it begins as it does with another choice and is found
    // in the store; only the answer is bound to one.
    std::erase_if(library.tools, [&](const auto& t) { return t.name != input.tool_name; });
  }
  auto params = common_chat_templates_apply(templates_, library);
  library.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO;
  const auto lazy = common_chat_templates_apply(templates_, library);
  params.prompt = std::move(prompt.text);
  const bool word = lazy.grammar_lazy && !lazy.grammar_triggers.empty() &&
                    lazy.grammar_triggers[0].type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD;
  if (word && !params.supports_thinking) {
    const std::string& begin = lazy.grammar_triggers[0].value;
    const auto begun = parser_of(params, input.reasoning_format).parse(begin, /*partial=*/true);
    if (begun.ok() && begun->content.empty()) {
      params.prompt += begin;
      params.generation_prompt += begin;
    }
  }
  return to_prompt(std::move(params), input.reasoning_format);
}

Result<std::string> ChatTemplate::render(const std::vector<ChatMessage>& messages) const {
  ChatInput input;
  input.messages = messages;
  HS_ASSIGN_OR_RETURN(ChatPrompt prompt, apply(input));
  return std::move(prompt.text);
}

std::string ChatTemplate::source() const { return common_chat_templates_source(templates_); }

std::map<std::string, bool> ChatTemplate::capabilities() const {
  return common_chat_templates_get_caps(templates_);
}

}  // namespace headstart::model
