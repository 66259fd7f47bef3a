#include "backend/cpu/dot/isa.h"

#include <atomic>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <hwy/highway.h>

#include "backend/cpu/dot/byte_kernels.h"
#include "backend/cpu/dot/fp8_rows.h"
#include "base/check.h"

namespace fathom::cpu {
namespace {

struct Level {
  Isa isa;
  std::string_view name;
  int64_t highway;  // the best of Highway's targets within it
  const ByteKernels* bytes;
};

#if defined(__x86_64__)
constexpr Level kLevels[] = {
    {Isa::kPortable, "portable", HWY_EMU128, &kByteKernelsPortable},
    {Isa::kSse4, "sse4", HWY_SSE4, &kByteKernelsPortable},
    {Isa::kAvx2, "avx2", HWY_AVX2, &kByteKernelsAvx2},
    {Isa::kAvxVnni, "avxvnni", HWY_AVX2, &kByteKernelsAvxVnni},
    {Isa::kAvx512, "avx512", HWY_AVX3, &kByteKernelsAvx2},
    {Isa::kAvx512Vnni, "avx512vnni", HWY_AVX3, &kByteKernelsAvx512Vnni},
};

// What Highway does not ask about. It has looked at what the system saves of the registers.
bool HasVbmi() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 1)) != 0;
}
bool HasVnni(bool wide) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (wide) return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & (1u << 11)) != 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0;
}
#else
constexpr Level kLevels[] = {
    {Isa::kPortable, "portable", HWY_EMU128, &kByteKernelsPortable},
};
bool HasVnni(bool) { return false; }
bool HasVbmi() { return false; }
#endif

const Level& LevelOf(Isa isa) {
  for (const Level& level : kLevels) {
    if (level.isa == isa) return level;
  }
  FATHOM_CHECK(false, "instruction set without a level");
}

bool Supported(const Level& level, int64_t targets) {
  if (level.isa == Isa::kAvxVnni && !HasVnni(false)) return false;
  if (level.isa == Isa::kAvx512Vnni && !HasVnni(true)) return false;
  return (targets & level.highway) != 0;
}

struct State {
  std::vector<Isa> supported;
  std::atomic<const Level*> chosen{nullptr};

  State() {
    // All of them, whatever was hidden from Highway before.
    const int64_t targets = hwy::SupportedTargets() | HWY_EMU128;
    for (const Level& level : kLevels) {
      if (Supported(level, targets)) supported.push_back(level.isa);
    }
    chosen = &LevelOf(supported.back());
  }
};

State& GetState() {
  static State state;
  return state;
}

void Use(const Level& level) {
  State& state = GetState();
  // Relaxed: nobody computes meanwhile.
  state.chosen.store(&level, std::memory_order_relaxed);
  const bool best = level.isa == state.supported.back();
  hwy::SetSupportedTargetsForTest(best ? 0 : level.highway);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::span<const Isa> SupportedIsas() { return GetState().supported; }

Isa ChosenIsa() { return GetState().chosen.load(std::memory_order_relaxed)->isa; }

const ByteKernels& ChosenByteKernels() {
  return *GetState().chosen.load(std::memory_order_relaxed)->bytes;
}

Fp8RowsFunction ChosenFp8Rows() {
  static const bool has_vbmi = HasVbmi();
  return has_vbmi && ChosenIsa() >= Isa::kAvx512Vnni ? &Fp8RowsAvx512 : nullptr;
}

Status SetIsa(Isa isa) {
  for (Isa supported : SupportedIsas()) {
    if (supported != isa) continue;
    Use(LevelOf(isa));
    return OkStatus();
  }
  return InvalidArgument("this machine has no " + std::string(IsaName(isa)) + " instructions");
}

void ResetIsa() { Use(LevelOf(GetState().supported.back())); }

std::string_view IsaName(Isa isa) { return LevelOf(isa).name; }

Result<Isa> IsaFromName(std::string_view name) {
  std::string names;
  for (const Level& level : kLevels) {
    if (level.name == name) return level.isa;
    names += (names.empty() ? "" : ", ") + std::string(level.name);
  }
  return InvalidArgument("no instruction set " + std::string(name) + "; there are " + names);
}

}  // namespace fathom::cpu
