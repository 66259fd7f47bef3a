// The YAML file of `fathom serve --config`. Keys are flags without dashes; lists are flags given
// several times, maps are JSON objects.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/settings.h"

namespace fathom::cli {

// `name` stands in messages. Pure function; never throws.
Layer ReadConfigText(const FlagCatalogue& catalogue, std::string_view text, const std::string& name,
                     std::vector<std::string>* problems);

}  // namespace fathom::cli
