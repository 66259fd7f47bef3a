#include "checkpoint/names.h"

#include <array>
#include <charconv>
#include <utility>

namespace fathom {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kAliases = {{
    {"self_attn", "attn"},
    {"mlp", "ffn"},
    {"weight_scale_inv", "scale"},
    {"e_score_correction_bias", "bias"},
}};

std::string_view ResolvePart(std::string_view part) {
  for (const auto& [alias, native] : kAliases) {
    if (part == alias) return native;
  }
  return part;
}

}  // namespace

std::string NativeTensorName(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  std::string out;
  out.reserve(name.size());
  while (true) {
    const size_t dot = name.find('.');
    out += ResolvePart(name.substr(0, dot));
    if (dot == std::string_view::npos) return out;
    out += '.';
    name.remove_prefix(dot + 1);
  }
}

bool IsSharedMtpTensor(std::string_view name) {
  return name.starts_with("mtp.") &&
         (name.find("emb") != std::string_view::npos || name.ends_with("head.weight"));
}

int MtpBlockOf(std::string_view name) {
  if (!name.starts_with("mtp.")) return -1;
  name.remove_prefix(4);
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 4) return -1;
  int block = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + dot, block);
  return error == std::errc{} && end == name.data() + dot ? block : -1;
}

}  // namespace fathom
