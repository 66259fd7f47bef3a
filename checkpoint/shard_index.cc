#include "checkpoint/shard_index.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/problems.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// A plain file name: an index must not make us open files elsewhere.
bool IsPlainFileName(std::string_view name) {
  return name.size() > 12 && name.ends_with(".safetensors") && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// {"metadata": {"total_size": n, ...}, "weight_map": {"tensor": "file", ...}}. Other members, at
// any level below the limit, are skipped.
class IndexReader : public nlohmann::json_sax<Json> {
 public:
  ShardIndex index;
  std::string error;
  bool has_weight_map = false;

  bool start_object(size_t) override {
    if (depth_ == 0 || (depth_ == 1 && (key_ == "weight_map" || key_ == "metadata"))) {
      if (depth_ == 1) section_ = key_;
      if (section_ == "weight_map") {
        if (has_weight_map) return Fail("two entries weight_map");
        has_weight_map = true;
      }
      ++depth_;
      return true;
    }
    return Nested();
  }
  bool end_object() override {
    if (--depth_ == 1) section_.clear();
    return true;
  }
  bool start_array(size_t) override { return depth_ == 0 ? Fail("not a JSON object") : Nested(); }
  bool end_array() override { return end_object(); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool string(string_t& value) override {
    if (!InWeightMap()) return Scalar();
    if (!IsPlainFileName(value)) {
      return Fail(Quoted(key_) + ": shard " + Quoted(value) +
                  " is not the name of a .safetensors file in this directory");
    }
    const auto [it, added] =
        shard_numbers_.try_emplace(std::move(value), static_cast<int>(shard_numbers_.size()));
    index.entries.push_back({key_, it->second});
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 2 && section_ == "metadata" && key_ == "total_size") index.total_bytes = value;
    return Scalar();
  }
  bool number_integer(number_integer_t) override { return Scalar(); }
  bool number_float(number_float_t, const string_t&) override { return Scalar(); }
  bool boolean(bool) override { return Scalar(); }
  bool null() override { return Scalar(); }
  bool binary(binary_t&) override { return Scalar(); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail("not well-formed JSON at byte " + std::to_string(position));
  }

  // Numbers shards in order of name; to be called once, after parsing.
  void Finish() {
    std::vector<int> order(shard_numbers_.size());
    int next = 0;
    for (const auto& [name, first_seen] : shard_numbers_) {  // std::map: sorted
      index.shards.push_back(name);
      order[static_cast<size_t>(first_seen)] = next++;
    }
    for (auto& entry : index.entries) entry.shard = order[static_cast<size_t>(entry.shard)];
    std::sort(index.entries.begin(), index.entries.end(),
              [](const auto& a, const auto& b) { return a.tensor < b.tensor; });
  }

 private:
  static constexpr int kMaxDepth = 16;

  [[nodiscard]] bool InWeightMap() const { return depth_ == 2 && section_ == "weight_map"; }
  bool Fail(std::string why) {
    error = std::move(why);
    return false;
  }
  bool Nested() {
    if (section_ == "weight_map") return Fail(Quoted(key_) + ": weight_map entry is no string");
    if (depth_ == kMaxDepth) return Fail("nested too deeply");
    ++depth_;
    return true;
  }
  bool Scalar() {
    if (depth_ == 0) return Fail("not a JSON object");
    if (InWeightMap()) return Fail(Quoted(key_) + ": weight_map entry is no string");
    if (depth_ == 1 && key_ == "weight_map") return Fail("weight_map is no object");
    return true;
  }

  int depth_ = 0;
  std::string section_;  // member of the top object that we are in
  std::string key_;
  std::map<std::string, int, std::less<>> shard_numbers_;
};

}  // namespace

Result<ShardIndex> ParseShardIndex(std::string_view json, std::string_view source) {
  const std::string where = std::string(source) + ": ";
  // The JSON parser takes a NUL for the end of the text.
  if (json.find('\0') != json.npos) return DataLoss(where + "holds a NUL byte");
  IndexReader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader)) return DataLoss(where + reader.error);
  if (!reader.has_weight_map || reader.index.entries.empty()) {
    return DataLoss(where + "no weight_map with entries");
  }
  reader.Finish();
  Problems problems;
  const auto& entries = reader.index.entries;
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].tensor == entries[i - 1].tensor) {
      problems.Add(Quoted(entries[i].tensor) + ": listed twice");
    }
  }
  FATHOM_RETURN_IF_ERROR(problems.ToStatus(StatusCode::kDataLoss, source));
  return std::move(reader.index);
}

Status CompareWithShards(const ShardIndex& index, std::span<const SafetensorsFile> shards,
                         std::string_view source) {
  Problems problems;
  size_t num_stored = 0;
  for (const auto& file : shards) num_stored += file.tensors().size();
  for (const auto& entry : index.entries) {
    if (shards[static_cast<size_t>(entry.shard)].Find(entry.tensor) == nullptr) {
      problems.Add(Quoted(entry.tensor) + ": listed in " +
                   index.shards[static_cast<size_t>(entry.shard)] + ", which does not hold it");
    }
  }
  // Equal counts and every entry found: nothing is stored that the index does not list.
  if (!problems.empty() || num_stored != index.entries.size()) {
    for (size_t shard = 0; shard < shards.size(); ++shard) {
      for (const StoredTensor& tensor : shards[shard].tensors()) {
        const auto it = std::lower_bound(
            index.entries.begin(), index.entries.end(), tensor.name,
            [](const ShardIndex::Entry& e, const std::string& name) { return e.tensor < name; });
        if (it == index.entries.end() || it->tensor != tensor.name) {
          problems.Add(Quoted(tensor.name) + ": stored in " + index.shards[shard] +
                       ", not listed in the index");
        } else if (static_cast<size_t>(it->shard) != shard) {
          problems.Add(Quoted(tensor.name) + ": stored in " + index.shards[shard] + ", listed in " +
                       index.shards[static_cast<size_t>(it->shard)]);
        }
      }
    }
  }
  return problems.ToStatus(StatusCode::kDataLoss, source);
}

}  // namespace fathom
