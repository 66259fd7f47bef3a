// fathom parse: the model's text to reasoning, content and tool calls, as the server reads it.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "chat/chat_request.h"
#include "chat/finish_reason.h"
#include "chat/json_parse.h"
#include "chat/output_message.h"
#include "chat/output_parser.h"
#include "chat/request_messages.h"
#include "cli/command.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string file = "-";
  std::string tools_file;
  std::string start = "content";
  std::string tool_choice = "auto";
  bool no_parallel_tool_calls = false;
  std::string finish = "stop";
  bool stream = false;
  size_t chunk = 0;  // characters per push; 0: a line
};

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::vector<JsonValue>> ReadTools(const std::string& path) {
  std::vector<JsonValue> tools;
  if (path.empty()) return tools;
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  FATHOM_ASSIGN_OR_RETURN(JsonValue list, ParseJson(text));
  JsonValue::Object body;
  body.push_back({"tools", std::move(list)});
  if (const auto error = ReadRequestTools(JsonValue::FromObject(std::move(body)), "", tools)) {
    return InvalidArgument(path + ": " + error->message);
  }
  return tools;
}

// The words of the API; any other is the name of a tool.
Result<ToolChoice> ReadToolChoice(const std::string& word, const std::vector<JsonValue>& tools) {
  if (word == "auto") return ToolChoice::kAuto;
  if (word == "none") return ToolChoice::kNone;
  if (word == "required") {
    if (tools.empty()) return InvalidArgument("--tool-choice required needs --tools");
    return ToolChoice::kRequired;
  }
  for (const JsonValue& tool : tools) {
    const JsonValue* name = tool.Find("name");
    if (name != nullptr && name->IfString() != nullptr && *name->IfString() == word) {
      return ToolChoice::kNamed;
    }
  }
  return InvalidArgument("--tool-choice is auto, none, required or a tool of --tools, not " + word);
}

// Size of the next piece of a stream: a line with its end, or so many characters.
size_t PieceSize(std::string_view text, size_t characters) {
  if (characters == 0) return std::min(text.find('\n'), text.size() - 1) + 1;
  size_t size = 0;
  while (size < text.size()) {
    const bool starts = (static_cast<unsigned char>(text[size]) & 0xC0) != 0x80;
    if (starts && characters-- == 0) break;
    ++size;
  }
  return size;
}

// As in a chunk of the API.
Json DeltaJson(const OutputDelta& delta) {
  Json json;
  if (delta.kind == OutputDelta::Kind::kReasoning) {
    json["reasoning"] = delta.text;
  } else if (delta.kind == OutputDelta::Kind::kContent) {
    json["content"] = delta.text;
  } else {
    Json call;
    call["index"] = delta.call;
    if (delta.kind == OutputDelta::Kind::kToolCall) call["function"]["name"] = delta.text;
    call["function"]["arguments"] =
        delta.kind == OutputDelta::Kind::kToolCall ? std::string() : delta.text;
    json["tool_calls"] = Json::array({std::move(call)});
  }
  return json;
}

Json MessageJson(const OutputMessage& message) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  Json json;
  json["reasoning"] = text_or_null(message.reasoning);
  json["content"] = text_or_null(message.content);
  json["tool_calls"] = Json::array();
  for (const OutputMessage::Call& call : message.calls) {
    json["tool_calls"].push_back({{"name", call.name}, {"arguments", call.arguments}});
  }
  return json;
}

int Run(const Options& o) {
  auto tools = ReadTools(o.tools_file);
  if (!tools.ok()) return Fail(tools.status());
  const auto tool_choice = ReadToolChoice(o.tool_choice, *tools);
  if (!tool_choice.ok()) return Fail(tool_choice.status());
  const auto text = ReadInput(o.file);
  if (!text.ok()) return Fail(text.status());

  OutputParserOptions options;
  options.start = o.start == "reasoning" ? OutputState::kReasoning : OutputState::kContent;
  options.tools = std::move(tools).value();
  options.swallow_calls = *tool_choice == ToolChoice::kNone;
  options.parallel_tool_calls = !o.no_parallel_tool_calls;
  OutputParser parser(std::move(options));
  OutputMessage message;
  std::vector<OutputDelta> deltas;
  const auto take = [&] {
    for (const OutputDelta& delta : deltas) {
      message.Add(delta);
      if (o.stream) std::cout << Dump(DeltaJson(delta)) << "\n";
    }
    deltas.clear();
  };
  for (std::string_view rest = *text; !rest.empty();) {
    const size_t size = o.stream ? PieceSize(rest, o.chunk) : rest.size();
    parser.Push(rest.substr(0, size), &deltas);
    rest.remove_prefix(size);
    take();
  }
  parser.Finish(o.finish == "stop" ? OutputEnd::kStop : OutputEnd::kCut, &deltas);
  take();

  Json end = o.stream ? Json::object() : MessageJson(message);
  end["finish_reason"] =
      FinishReasonFor(o.finish, *tool_choice, parser.num_calls(), parser.all_calls_complete());
  for (size_t i = 0; i < kNumParserRepairs; ++i) {
    if (parser.repairs()[i] > 0) end["repairs"][kParserRepairNames[i]] = parser.repairs()[i];
  }
  std::cout << Dump(end) << "\n";
  return 0;
}

}  // namespace

void AddParseCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("parse", "Read a model's text into reasoning, content and tool calls");
  command
      ->add_option("file", o->file,
                   "The text after the prompt, without the end token; - is standard input")
      ->capture_default_str();
  command->add_option("--tools", o->tools_file,
                      "JSON file with the list of tools, as in a chat request; without one, markup "
                      "of calls is text");
  command->add_option("--start", o->start, "reasoning: the prompt ended inside a think block")
      ->check(CLI::IsMember({"reasoning", "content"}))
      ->capture_default_str();
  command
      ->add_option("--tool-choice", o->tool_choice,
                   "auto, required, none (calls are taken out), or the name of a tool")
      ->capture_default_str();
  command->add_flag("--no-parallel-tool-calls", o->no_parallel_tool_calls,
                    "Drop what follows the first complete call");
  command->add_option("--finish", o->finish, "Why the text ended")
      ->check(CLI::IsMember({"stop", "length", "abort"}))
      ->capture_default_str();
  auto* stream = command->add_flag("--stream", o->stream,
                                   "One JSON line per delta, then one with the finish reason");
  command->add_option("--chunk", o->chunk, "With --stream: characters at a time (default: a line)")
      ->check(CLI::PositiveNumber)
      ->needs(stream);
  command->footer(
      "Prints a JSON object: reasoning, content, tool_calls, finish_reason, and what was "
      "malformed\n"
      "(repairs), if anything was. Needs no model.\n"
      "Example: printf 'Hm.</think>Yes.' | fathom parse --start reasoning");
  command->callback([o, &action] { action = [o] { return Run(*o); }; });
}

}  // namespace fathom::cli
