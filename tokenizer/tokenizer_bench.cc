// Measures encoding speed: tokenizer_bench MODEL_DIR [MEGABYTES]
//
// The text is prose in two alphabets, code, numbers, JSON and emoji in fixed proportion, drawn from
// a fixed seed. Words are drawn with a long tail, so that the piece cache meets new ones all the
// time.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

// CPU time: one thread does all the work, and other programs hardly change it.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Engine output only: the standard fixes it, while distributions differ between libraries.
using Random = std::mt19937;

// Ranks with probability about 1 / rank, as words of a language have.
size_t ZipfRank(Random& random, size_t num_words) {
  const double u = static_cast<double>(random()) / 4294967296.0;
  return std::min(num_words - 1,
                  static_cast<size_t>(std::pow(static_cast<double>(num_words), u)) - 1);
}

std::vector<std::string> MakeWords(Random& random, size_t num_words) {
  constexpr const char* kSyllables[] = {"an", "ter", "in", "con", "ing", "er",  "ti", "re", "al",
                                        "on", "de",  "st", "pro", "men", "com", "ly", "th", "e",
                                        "ed", "un",  "is", "o",   "ver", "ka",  "mi", "s",  "li"};
  std::vector<std::string> words(num_words);
  for (std::string& word : words) {
    const size_t num_syllables = 1 + random() % 4;
    for (size_t i = 0; i < num_syllables; ++i) {
      word += kSyllables[random() % (sizeof(kSyllables) / sizeof(kSyllables[0]))];
    }
  }
  return words;
}

std::string MixedText(size_t num_bytes) {
  Random random(42);
  const std::vector<std::string> words = MakeWords(random, 50000);
  const auto word = [&] { return words[ZipfRank(random, words.size())]; };
  const auto number = [&] { return std::to_string(random() % 1000000); };
  std::string text;
  while (text.size() < num_bytes) {
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:  // prose
        for (int i = 0; i < 60; ++i) text += word() + (i % 12 == 11 ? ". " : " ");
        text += "\n\n";
        break;
      case 3:  // code
        for (int i = 0; i < 12; ++i) {
          text += "    if (" + word() + "_" + word() + "[" + number() + "] != nullptr) {\n";
          text += "        return " + word() + "." + word() + "(\"" + word() + "\");\n    }\n";
        }
        break;
      case 4:
      case 5:  // Han: common characters are frequent too
        for (int i = 0; i < 120; ++i) {
          AppendUtf8(static_cast<char32_t>(0x4E00 + ZipfRank(random, 6000)), text);
          if (i % 17 == 16) text += "，";
        }
        text += "。\n";
        break;
      case 6:  // JSON
        for (int i = 0; i < 12; ++i) {
          text += "{\"" + word() + "\": " + number() + ", \"id\": \"" + word() + "\"},\n";
        }
        break;
      default:  // chat with emoji and accents
        for (int i = 0; i < 20; ++i) {
          text += word() + " ";
          AppendUtf8(static_cast<char32_t>(0x1F600 + random() % 60), text);
          text += " déjà vu, naïve über ";
        }
        text += "\n";
    }
  }
  return text;
}

// One and two megabytes of one thing: time must double, not quadruple.
int RunPathological(const char* path) {
  const Result<Tokenizer> tokenizer = Tokenizer::Load(path);
  if (!tokenizer.ok()) return 1;
  constexpr std::pair<const char*, const char*> kUnits[] = {
      {"a", "a"}, {"space", " "},         {"newline", "\n"}, {"space newline", " \n"}, {"7", "7"},
      {"!", "!"}, {"<｜User", "<｜User"}, {"中", "中"},      {"🙂", "🙂"}};
  for (const auto& [name, unit] : kUnits) {
    double seconds[2] = {};
    for (const size_t factor : {1, 2}) {
      std::string text;
      while (text.size() < factor * 1000000) text += unit;
      const double start = CpuSeconds();
      if (!tokenizer.value().Encode(text, AddedTokens::kMatch).ok()) return 1;
      seconds[factor - 1] = CpuSeconds() - start;
    }
    std::printf("repeated %s: 1 MB %.0f ms, 2 MB %.0f ms\n", name, seconds[0] * 1e3,
                seconds[1] * 1e3);
  }
  return 0;
}

int Run(const char* path, size_t num_bytes) {
  const std::string text = MixedText(num_bytes);
  for (const bool use_cache : {true, false}) {
    const double load_start = CpuSeconds();
    const Result<Tokenizer> tokenizer = Tokenizer::Load(path, {.use_piece_cache = use_cache});
    if (!tokenizer.ok()) {
      std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
      return 1;
    }
    const double load = CpuSeconds() - load_start;
    std::vector<double> rates;
    size_t num_ids = 0;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const double start = CpuSeconds();
      const auto ids = tokenizer.value().Encode(text, AddedTokens::kMatch);
      const double seconds = CpuSeconds() - start;
      if (!ids.ok()) return 1;
      num_ids = ids.value().size();
      rates.push_back(static_cast<double>(text.size()) / 1e6 / seconds);
    }
    std::sort(rates.begin(), rates.end());
    std::printf(
        "cache %s: %.1f MB/s (median of 3; %.1f to %.1f), %zu bytes -> %zu ids, load %.2f s\n",
        use_cache ? "on " : "off", rates[1], rates[0], rates[2], text.size(), num_ids, load);
  }
  return RunPathological(path);
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  const long megabytes = argc == 3 ? std::atol(argv[2]) : 10;
  if (argc < 2 || argc > 3 || megabytes < 1 || megabytes > 1000) {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL_DIR [MEGABYTES, 1 to 1000]\n");
    return 2;
  }
  return fathom::Run(argv[1], static_cast<size_t>(megabytes) * 1000000);
}
