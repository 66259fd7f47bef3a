#include "server/model_list.h"

#include "server/json_text.h"

namespace fathom {

std::string ModelJson(const std::string& name, int64_t created, int64_t max_model_len) {
  const std::string quoted = JsonString(name);
  std::string out = "{\"id\":" + quoted + ",\"object\":\"model\",\"created\":";
  AppendJsonInt(created, &out);
  out += ",\"owned_by\":\"fathom\",\"root\":" + quoted + ",\"parent\":null,\"max_model_len\":";
  AppendJsonInt(max_model_len, &out);
  out += ",\"permission\":[]}";
  return out;
}

std::string ModelListJson(const std::vector<std::string>& names, int64_t created,
                          int64_t max_model_len) {
  std::string out = "{\"object\":\"list\",\"data\":[";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out.push_back(',');
    out += ModelJson(names[i], created, max_model_len);
  }
  out += "]}";
  return out;
}

}  // namespace fathom
