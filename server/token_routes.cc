#include "server/token_routes.h"

#include <string>
#include <utility>
#include <vector>

#include "server/field_reader.h"
#include "server/json_text.h"

namespace fathom {
namespace {

MaybeError EncodeRequest(const GenerationRoute& route, const JsonValue& body,
                         std::vector<TokenId>* ids, bool* with_texts) {
  FieldReader reader(body);
  const std::string model_name = reader.String("model").value_or("");
  const bool add_special_tokens = reader.Bool("add_special_tokens", true);
  const std::optional<std::string> prompt = reader.String("prompt");
  *with_texts = reader.Bool("return_token_strs", false);
  if (!reader.ok()) return reader.error();
  const auto model = route.names->Find(model_name);
  if (!model) return UnknownModel(model_name, *route.names);
  const bool is_chat = body.FindNonNull("messages") != nullptr;
  if (prompt.has_value() == is_chat) {
    return BadRequest("prompt", "the request needs either prompt or messages");
  }
  if (is_chat) {
    ChatPrompt chat;
    if (MaybeError error = route.front_end->PrepareChat(body, *model->default_kwargs, &chat)) {
      return error;
    }
    *ids = std::move(chat.ids);
    return std::nullopt;
  }
  Result<std::vector<TokenId>> encoded = route.front_end->EncodePrompt(*prompt, add_special_tokens);
  if (!encoded.ok()) return FromStatus(encoded.status());
  *ids = std::move(encoded).value();
  return std::nullopt;
}

}  // namespace

http::Response Tokenize(const GenerationRoute& route, const http::Request& request) {
  JsonValue body;
  if (MaybeError error = ParseBody(request, &body)) return ErrorResponse(*error);
  std::vector<TokenId> ids;
  bool with_texts = false;
  if (MaybeError error = EncodeRequest(route, body, &ids, &with_texts)) {
    return ErrorResponse(*error);
  }
  std::string json = "{\"count\":";
  AppendJsonInt(static_cast<int64_t>(ids.size()), &json);
  json += ",\"max_model_len\":";
  AppendJsonInt(route.engine->info().max_model_len, &json);
  json += ",\"tokens\":[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) json.push_back(',');
    AppendJsonInt(ids[i], &json);
  }
  json += "],\"token_strs\":";
  json += with_texts ? "[" : "null";
  for (size_t i = 0; with_texts && i < ids.size(); ++i) {
    if (i > 0) json.push_back(',');
    AppendJsonString(route.front_end->TokenBytes(ids[i]), &json);
  }
  json += with_texts ? "]}" : "}";
  return {200, "application/json", {}, std::move(json)};
}

http::Response Detokenize(const GenerationRoute& route, const http::Request& request) {
  JsonValue body;
  if (MaybeError error = ParseBody(request, &body)) return ErrorResponse(*error);
  FieldReader reader(body);
  const std::string model = reader.String("model").value_or("");
  if (reader.ok() && reader.Find("tokens") == nullptr) reader.Fail("tokens", "is missing");
  const std::vector<TokenId> ids = reader.TokenIds("tokens", route.limits.vocab_size);
  if (!reader.ok()) return ErrorResponse(*reader.error());
  if (!route.names->Find(model)) return ErrorResponse(UnknownModel(model, *route.names));
  std::string json = "{\"prompt\":";
  AppendJsonString(route.front_end->Decode(ids, /*skip_special_tokens=*/false), &json);
  json.push_back('}');
  return {200, "application/json", {}, std::move(json)};
}

}  // namespace fathom
