// ReadExposition: Prometheus' text format 0.0.4 read back, for tests. Strict: what a scraper would
// refuse fails the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom {

using LabelMap = std::map<std::string, std::string>;

struct MetricSample {
  std::string name;  // with _bucket, _sum, _count
  LabelMap labels;
  double value = 0.0;
};

struct MetricPage {
  struct Family {
    std::string type;
    std::string help;
    std::vector<MetricSample> samples;
  };
  std::map<std::string, Family> families;

  // The one sample with this name and (among others) these labels.
  [[nodiscard]] std::optional<double> Find(std::string_view name,
                                           const LabelMap& labels = {}) const {
    std::optional<double> found;
    for (const auto& [_, family] : families) {
      for (const MetricSample& sample : family.samples) {
        if (sample.name != name) continue;
        bool fits = true;
        for (const auto& [key, value] : labels) {
          const auto it = sample.labels.find(key);
          fits = fits && it != sample.labels.end() && it->second == value;
        }
        if (!fits) continue;
        EXPECT_FALSE(found) << "several samples of " << name;
        found = sample.value;
      }
    }
    return found;
  }
  [[nodiscard]] double Value(std::string_view name, const LabelMap& labels = {}) const {
    const auto found = Find(name, labels);
    EXPECT_TRUE(found) << "no sample of " << name;
    return found.value_or(-1.0);
  }
};

namespace exposition {

inline std::string TakeWord(std::string_view* line) {
  const size_t end = std::min(line->find(' '), line->size());
  std::string word(line->substr(0, end));
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

// {a="b",c="d"}; false where it is malformed.
inline bool ReadLabels(std::string_view* line, LabelMap* labels) {
  line->remove_prefix(1);
  while (!line->empty() && line->front() != '}') {
    const size_t equals = line->find("=\"");
    if (equals == std::string_view::npos) return false;
    const std::string name(line->substr(0, equals));
    line->remove_prefix(equals + 2);
    std::string value;
    while (!line->empty() && line->front() != '"') {
      char c = line->front();
      if (c == '\\') {
        line->remove_prefix(1);
        if (line->empty()) return false;
        c = line->front();
        if (c != '\\' && c != '"' && c != 'n') return false;
        if (c == 'n') c = '\n';
      }
      value.push_back(c);
      line->remove_prefix(1);
    }
    if (line->empty() || !labels->emplace(name, value).second) return false;
    line->remove_prefix(1);
    if (!line->empty() && line->front() == ',') line->remove_prefix(1);
  }
  if (line->empty()) return false;
  line->remove_prefix(1);
  return true;
}

inline bool BelongsTo(const std::string& sample, const std::string& family,
                      const std::string& type) {
  if (type != "histogram") return sample == family;
  return sample == family + "_bucket" || sample == family + "_sum" || sample == family + "_count";
}

}  // namespace exposition

inline MetricPage ReadExposition(std::string_view text) {
  MetricPage page;
  MetricPage::Family* family = nullptr;
  std::string family_name;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    EXPECT_NE(end, std::string_view::npos) << "the last line has no end";
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end, text.size() - 1) + 1);
    if (line.substr(0, 7) == "# HELP ") {
      line.remove_prefix(7);
      family_name = exposition::TakeWord(&line);
      const auto [it, added] = page.families.try_emplace(family_name);
      EXPECT_TRUE(added) << family_name << " comes twice";
      family = &it->second;
      family->help = line;
      continue;
    }
    if (line.substr(0, 7) == "# TYPE ") {
      line.remove_prefix(7);
      EXPECT_EQ(exposition::TakeWord(&line), family_name);
      if (family != nullptr) family->type = line;
      continue;
    }
    const std::string whole(line);
    MetricSample sample;
    const size_t name_end = line.find_first_of("{ ");
    sample.name = line.substr(0, name_end);
    line.remove_prefix(std::min(name_end, line.size()));
    const bool labels_fit =
        line.empty() || line.front() != '{' || exposition::ReadLabels(&line, &sample.labels);
    char* value_end = nullptr;
    const std::string value(line.substr(std::min<size_t>(1, line.size())));
    sample.value = std::strtod(value.c_str(), &value_end);
    const bool fits = labels_fit && family != nullptr && !value.empty() && *value_end == '\0' &&
                      exposition::BelongsTo(sample.name, family_name, family->type);
    EXPECT_TRUE(fits) << "malformed or misplaced: " << whole;
    if (fits) family->samples.push_back(std::move(sample));
  }
  return page;
}

}  // namespace fathom
