// Tool calls in the official DSML text as a grammar: what `tool_choice` required or a named tool,
// and strict tools under auto, are held to.
//
//   "\n\n<｜DSML｜tool_calls>\n" invokes joined by "\n" "\n</｜DSML｜tool_calls>"
//
// Parameters come in schema order, required ones always, strings raw (string="true") and all else
// as JSON (string="false"); a raw value never holds a tag that the parser would end it at. Pure
// functions.
#pragma once

#include <span>
#include <string>

#include "base/status.h"
#include "chat/json_value.h"
#include "grammar/grammar.h"

namespace fathom {

struct ToolSpec {
  std::string name;
  const JsonValue* parameters = nullptr;  // schema; null pointer or JSON null: no parameters
  bool strict = false;                    // otherwise keywords that cannot be enforced are ignored
  // The tags are held to the format; parameters may be any, in any order and of any value. A tool
  // whose name the format cannot carry is left out.
  bool tags_only = false;
  std::string path;  // of the schema, for messages: tools[0].function.parameters
};

struct ToolCallOptions {
  bool parallel = true;  // several calls may follow each other in the block
  // The text begins right behind "<｜DSML｜tool_calls>" and anything may follow the block.
  bool is_opened = false;
};

// One block with at least one call of the given tools. kInvalidArgument: no tools, a bad schema;
// kUnimplemented: a strict schema with keywords that cannot be enforced, a name that the format
// cannot carry.
Result<Grammar> ToolCallGrammar(std::span<const ToolSpec> tools, const ToolCallOptions& options);

}  // namespace fathom
