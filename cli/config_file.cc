#include "cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fathom::cli {
namespace {

using Json = nlohmann::json;

// Aliases make small texts into huge trees.
constexpr int kMaxNodes = 10'000;
constexpr int kMaxDepth = 16;

// A scalar means what YAML's core schema says; quoted ones (tag "!") are strings.
Json ScalarToJson(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  Json number = Json::parse(text, nullptr, false);
  if (number.is_number()) return number;
  return text;
}

// False when the tree is too large.
bool ToJson(const YAML::Node& node, int depth, int* budget, Json* out) {
  if (depth > kMaxDepth || --*budget < 0) return false;
  if (node.IsSequence()) {
    *out = Json::array();
    for (const YAML::Node& part : node) {
      if (!ToJson(part, depth + 1, budget, &out->emplace_back())) return false;
    }
  } else if (node.IsMap()) {
    *out = Json::object();
    for (const auto& member : node) {
      if (!member.first.IsScalar()) return false;
      if (!ToJson(member.second, depth + 1, budget, &(*out)[member.first.Scalar()])) return false;
    }
  } else if (node.IsScalar()) {
    *out = ScalarToJson(node);
  } else {
    *out = nullptr;
  }
  return true;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class Reader {
 public:
  Reader(const FlagCatalogue& catalogue, const std::string& file,
         std::vector<std::string>* problems)
      : catalogue_(catalogue), file_(file), problems_(problems) {}

  Layer Read(const YAML::Node& root) {
    if (root.IsNull()) return {};
    if (!root.IsMap()) {
      problems_->push_back(file_ + ": expected a map of options, such as 'port: 8000'");
      return {};
    }
    for (const auto& member : root) {
      if (!member.first.IsScalar()) {
        problems_->push_back(file_ + ": a key is no word");
        continue;
      }
      ReadMember(member.first.Scalar(), member.second);
    }
    return std::move(layer_);
  }

 private:
  void Complain(const std::string& key, const std::string& message) {
    problems_->push_back(file_ + ": " + key.substr(0, 100) + ": " + message);
  }

  void ReadMember(const std::string& key, const YAML::Node& node) {
    const size_t dot = key.find('.');
    std::string name = key.substr(0, dot);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto [flag, negated] = catalogue_.FindOrNegated(name);
    if (flag == nullptr) {
      return Complain(key, "unknown option" + catalogue_.Suggestion(name));
    }
    if (name == "config" || name == "print-config" || name == "help" || name == "help-all") {
      return Complain(key, "stands on the command line only");
    }
    if (node.IsNull()) return;  // as if it were not there
    if (dot != std::string::npos) return ReadPath(*flag, key, key.substr(dot + 1), node);
    if (layer_.count(flag->name) != 0) return Complain(key, "given twice");
    std::vector<std::string> values;
    if (!ReadValues(*flag, key, node, &values)) return;
    if (flag->kind == FlagKind::kSwitch) {
      values.front() = ParseSwitch(values.front());
      if (values.front().empty()) return Complain(key, "expected true or false");
      if (negated) values.front() = values.front() == "true" ? "false" : "true";
    }
    layer_[flag->name] = std::move(values);
  }

  bool ReadValues(const FlagInfo& flag, const std::string& key, const YAML::Node& node,
                  std::vector<std::string>* values) {
    if (flag.kind == FlagKind::kJson) {
      if (node.IsScalar()) {
        if (Status depth = CheckJsonDepth(node.Scalar()); !depth.ok()) {
          Complain(key, depth.message());
          return false;
        }
        values->push_back(node.Scalar());
        return true;
      }
      Json json;
      int budget = kMaxNodes;
      if (!ToJson(node, 0, &budget, &json)) {
        Complain(key, "nested too deep, too large, or a key is no word");
        return false;
      }
      values->push_back(Dump(json));
      return true;
    }
    const bool may_repeat = flag.kind == FlagKind::kList || flag.kind == FlagKind::kRepeated;
    if (node.IsScalar()) {
      values->push_back(node.Scalar());
      return true;
    }
    if (!may_repeat || !node.IsSequence()) {
      Complain(key, may_repeat ? "expected a value or a list of values" : "expected one value");
      return false;
    }
    for (const YAML::Node& part : node) {
      if (!part.IsScalar() || values->size() >= static_cast<size_t>(kMaxNodes)) {
        Complain(key, "expected a list of values");
        return false;
      }
      values->push_back(part.Scalar());
    }
    return true;
  }

  void ReadPath(const FlagInfo& flag, const std::string& key, const std::string& path,
                const YAML::Node& node) {
    if (flag.kind != FlagKind::kJson) return Complain(key, "--" + flag.name + " has no keys");
    Json json;
    int budget = kMaxNodes;
    if (!ToJson(node, 0, &budget, &json)) return Complain(key, "nested too deep or too large");
    std::vector<std::string>& values = layer_[flag.name];
    if (values.empty()) values.emplace_back();
    if (Status set = SetJsonPath(path, Dump(json), &values.front()); !set.ok()) {
      Complain(key, set.message());
    }
  }

  const FlagCatalogue& catalogue_;
  const std::string file_;
  std::vector<std::string>* problems_;
  Layer layer_;
};

}  // namespace

Layer ReadConfigText(const FlagCatalogue& catalogue, std::string_view text, const std::string& name,
                     std::vector<std::string>* problems) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  if (text.size() > kMaxBytes) {
    problems->push_back(name + ": longer than 1 MiB");
    return {};
  }
  // The library reports by exceptions, also when nodes are used; none leaves this function.
  try {
    return Reader(catalogue, name, problems).Read(YAML::Load(std::string(text)));
  } catch (const YAML::Exception& error) {
    problems->push_back(name + ": " + error.what());
    return {};
  }
}

}  // namespace fathom::cli
