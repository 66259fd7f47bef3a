// Bodies of /v1/models and /v1/models/{id}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

std::string ModelListJson(const std::vector<std::string>& names, int64_t created,
                          int64_t max_model_len);
std::string ModelJson(const std::string& name, int64_t created, int64_t max_model_len);

}  // namespace fathom
