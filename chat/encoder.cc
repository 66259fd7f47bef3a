#include "chat/encoder.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "chat/deepseek_text.h"
#include "chat/markers.h"

namespace fathom {
namespace {

// What is rendered as one message: tool results and neighbouring user messages share a user turn.
struct Turn {
  ChatRole role;                           // never kTool
  const ChatMessage* message;              // first message of the turn
  std::vector<const ChatMessage*> blocks;  // user turns only: user texts and tool results
  std::optional<ChatTask> task;
};

bool IsToolResult(const ChatMessage* block) { return block->role == ChatRole::kTool; }

std::vector<Turn> MergeIntoTurns(std::span<const ChatMessage> messages) {
  std::vector<Turn> turns;
  for (const ChatMessage& message : messages) {
    const bool is_tool = message.role == ChatRole::kTool;
    if (!is_tool && message.role != ChatRole::kUser) {
      turns.push_back({message.role, &message, {}, message.task});
      continue;
    }
    // A task ends its turn for the next user text, but not for tool results.
    const bool joins =
        !turns.empty() && turns.back().role == ChatRole::kUser && (is_tool || !turns.back().task);
    if (!joins) {
      const std::optional<ChatTask> task = is_tool ? std::nullopt : message.task;
      turns.push_back({ChatRole::kUser, &message, {}, task});
    }
    turns.back().blocks.push_back(&message);
  }
  return turns;
}

// Puts the tool results of a user turn into the order of the calls they answer; text stays in
// place.
void SortToolResults(std::vector<Turn>& turns) {
  std::map<std::string_view, size_t> call_order;  // of the latest assistant turn with calls
  const auto position_of = [&](const ChatMessage* block) {
    const auto found = call_order.find(block->tool_call_id);
    return found == call_order.end() ? size_t{0} : found->second;
  };
  for (Turn& turn : turns) {
    if (turn.role == ChatRole::kAssistant && !turn.message->tool_calls.empty()) {
      call_order.clear();
      const std::vector<ToolCall>& calls = turn.message->tool_calls;
      for (size_t i = 0; i < calls.size(); ++i) {
        if (!calls[i].id.empty()) call_order[calls[i].id] = i;
      }
    }
    std::vector<const ChatMessage*> results;
    for (const ChatMessage* block : turn.blocks) {
      if (IsToolResult(block)) results.push_back(block);
    }
    std::stable_sort(results.begin(), results.end(),
                     [&](const ChatMessage* a, const ChatMessage* b) {
                       return position_of(a) < position_of(b);
                     });
    auto next = results.begin();
    for (const ChatMessage*& block : turn.blocks) {
      if (IsToolResult(block)) block = *next++;
    }
  }
}

// Index of the last user or developer turn; -1 if there is none.
ptrdiff_t LastQuery(const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i > 0; --i) {
    const ChatRole role = turns[i - 1].role;
    if (role == ChatRole::kUser || role == ChatRole::kDeveloper)
      return static_cast<ptrdiff_t>(i) - 1;
  }
  return -1;
}

std::string_view TaskToken(ChatTask task) {
  switch (task) {
    case ChatTask::kAction:
      return markers::kActionTask;
    case ChatTask::kQuery:
      return markers::kQueryTask;
    case ChatTask::kAuthority:
      return markers::kAuthorityTask;
    case ChatTask::kDomain:
      return markers::kDomainTask;
    case ChatTask::kReadUrl:
      return markers::kReadUrlTask;
    case ChatTask::kTitle:
      return markers::kTitleTask;
  }
  return "";
}

class Renderer {
 public:
  Renderer(std::vector<Turn> turns, const EncodeOptions& options, bool drop_thinking)
      : turns_(std::move(turns)),
        last_query_(LastQuery(turns_)),
        thinking_(options.thinking_mode == ThinkingMode::kThinking),
        drop_thinking_(drop_thinking),
        add_header_(options.add_generation_header) {}

  Status Render(size_t first, std::string_view effort_text) {
    for (size_t i = first; i < turns_.size(); ++i) {
      if (i == 0 && thinking_) Template(effort_text);
      FATHOM_RETURN_IF_ERROR(RenderTurn(i));
      if (i + 1 < turns_.size() || add_header_) RenderTransition(i);
    }
    return OkStatus();
  }

  void Template(std::string_view text) { AppendSegment(segments_, text, true); }
  std::vector<PromptSegment> TakeSegments() { return std::move(segments_); }

 private:
  void Client(std::string_view text) { AppendSegment(segments_, text, false); }

  Status RenderTurn(size_t index) {
    const Turn& turn = turns_[index];
    switch (turn.role) {
      case ChatRole::kSystem:
        Client(turn.message->content);
        RenderToolsAndFormat(*turn.message);
        break;
      case ChatRole::kDeveloper:
        if (turn.message->content.empty()) {
          return InvalidArgument("a developer message needs content");
        }
        Template(markers::kUser);
        Client(turn.message->content);
        RenderToolsAndFormat(*turn.message);
        break;
      case ChatRole::kUser:
        RenderUser(turn);
        break;
      case ChatRole::kLatestReminder:
        Template(markers::kLatestReminder);
        Client(turn.message->content);
        break;
      case ChatRole::kAssistant:
        RenderAssistant(index);
        break;
      case ChatRole::kTool:
        return Internal("tool messages are part of user turns");
    }
    return OkStatus();
  }

  void RenderToolsAndFormat(const ChatMessage& message) {
    if (!message.tools.empty()) {
      Template("\n\n");
      Template(deepseek_text::kToolsHead);
      for (size_t i = 0; i < message.tools.size(); ++i) {
        if (i > 0) Template("\n");
        Client(ToPythonJson(message.tools[i]));
      }
      Template(deepseek_text::kToolsTail);
    }
    if (message.response_format) {
      Template("\n\n");
      Template(deepseek_text::kResponseFormatHead);
      Client(ToPythonJson(*message.response_format));
    }
  }

  void RenderUser(const Turn& turn) {
    Template(markers::kUser);
    for (size_t i = 0; i < turn.blocks.size(); ++i) {
      if (i > 0) Template("\n\n");
      const bool is_result = IsToolResult(turn.blocks[i]);
      if (is_result) Template(markers::kToolResultOpen);
      Client(turn.blocks[i]->content);
      if (is_result) Template(markers::kToolResultClose);
    }
  }

  void RenderAssistant(size_t index) {
    const ChatMessage& message = *turns_[index].message;
    const bool answers_task = index > 0 && turns_[index - 1].task.has_value();
    const bool is_current = static_cast<ptrdiff_t>(index) > last_query_;
    if (thinking_ && !answers_task && (!drop_thinking_ || is_current)) {
      Client(message.reasoning);
      if (!message.leave_reasoning_open) Template(markers::kThinkClose);
    }
    Client(message.content);
    if (!message.tool_calls.empty()) RenderToolCalls(message.tool_calls);
    if (!message.omit_eos) Template(markers::kEos);
  }

  void RenderToolCalls(const std::vector<ToolCall>& calls) {
    Template("\n\n");
    Template(markers::kToolCallsOpen);
    for (const ToolCall& call : calls) {
      Template("\n");
      Template(markers::kInvokeOpen);
      Client(call.name);
      Template("\">\n");
      for (size_t i = 0; i < call.arguments.size(); ++i) {
        if (i > 0) Template("\n");
        RenderParameter(call.arguments[i]);
      }
      Template("\n");
      Template(markers::kInvokeClose);
    }
    Template("\n");
    Template(markers::kToolCallsClose);
  }

  void RenderParameter(const JsonValue::Member& parameter) {
    const std::string* text = parameter.value.IfString();
    Template(markers::kParameterOpen);
    Client(parameter.key);
    Template(text != nullptr ? "\" string=\"true\">" : "\" string=\"false\">");
    Client(text != nullptr ? *text : ToPythonJson(parameter.value));
    Template(markers::kParameterClose);
  }

  // What opens the next turn, if that is the model's.
  void RenderTransition(size_t index) {
    if (index + 1 < turns_.size()) {
      const ChatRole next = turns_[index + 1].role;
      if (next != ChatRole::kAssistant && next != ChatRole::kLatestReminder) return;
    }
    const Turn& turn = turns_[index];
    if (turn.task) {
      if (*turn.task == ChatTask::kAction) {
        Template(GenerationHeader(thinking_ ? ThinkingMode::kThinking : ThinkingMode::kChat));
      }
      Template(TaskToken(*turn.task));
    } else if (turn.role == ChatRole::kUser || turn.role == ChatRole::kDeveloper) {
      const bool is_current = static_cast<ptrdiff_t>(index) >= last_query_;
      const bool thinks = thinking_ && (!drop_thinking_ || is_current);
      Template(GenerationHeader(thinks ? ThinkingMode::kThinking : ThinkingMode::kChat));
    }
  }

  std::vector<Turn> turns_;
  ptrdiff_t last_query_;
  bool thinking_;
  bool drop_thinking_;
  bool add_header_;
  std::vector<PromptSegment> segments_;
};

}  // namespace

Result<std::vector<PromptSegment>> EncodeChat(std::span<const ChatMessage> messages,
                                              const EncodeOptions& options,
                                              std::span<const ChatMessage> context) {
  std::string_view effort_text;
  if (options.effort) {
    FATHOM_ASSIGN_OR_RETURN(effort_text, EffortText(*options.effort, options.effort_profile));
  }
  // Merged apart: what was rendered already cannot take another text into its last turn.
  std::vector<Turn> turns = MergeIntoTurns(context);
  size_t num_context_turns = turns.size();
  std::vector<Turn> new_turns = MergeIntoTurns(messages);
  std::move(new_turns.begin(), new_turns.end(), std::back_inserter(turns));
  SortToolResults(turns);

  const auto has_tools = [](const ChatMessage& message) { return !message.tools.empty(); };
  const bool drop_thinking = options.drop_thinking &&
                             std::none_of(messages.begin(), messages.end(), has_tools) &&
                             std::none_of(context.begin(), context.end(), has_tools);
  if (options.thinking_mode == ThinkingMode::kThinking && drop_thinking) {
    // Of what comes before the last query, an earlier developer message disappears altogether.
    const ptrdiff_t last_query = LastQuery(turns);
    std::vector<Turn> kept;
    size_t num_context_kept = 0;
    for (size_t i = 0; i < turns.size(); ++i) {
      const bool is_earlier = static_cast<ptrdiff_t>(i) < last_query;
      if (is_earlier && turns[i].role == ChatRole::kDeveloper) continue;
      if (i < num_context_turns) ++num_context_kept;
      kept.push_back(std::move(turns[i]));
    }
    turns = std::move(kept);
    num_context_turns = num_context_kept;
  }

  Renderer renderer(std::move(turns), options, drop_thinking);
  if (options.add_bos && context.empty()) renderer.Template(markers::kBos);
  FATHOM_RETURN_IF_ERROR(renderer.Render(num_context_turns, effort_text));
  return renderer.TakeSegments();
}

std::string GenerationHeader(ThinkingMode mode) {
  std::string header(markers::kAssistant);
  header += mode == ThinkingMode::kThinking ? markers::kThinkOpen : markers::kThinkClose;
  return header;
}

void AppendSegment(std::vector<PromptSegment>& segments, std::string_view text,
                   bool from_template) {
  if (text.empty()) return;
  if (segments.empty() || segments.back().from_template != from_template) {
    segments.push_back({std::string(), from_template});
  }
  segments.back().text += text;
}

std::string PromptText(std::span<const PromptSegment> segments) {
  std::string text;
  for (const PromptSegment& segment : segments) text += segment.text;
  return text;
}

}  // namespace fathom
