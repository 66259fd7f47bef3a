// Random inputs, stored weights and the formats' rounding rules, in double and written apart from
// base/formats: what the operations' tests compute their expectations with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "backend/weights.h"

namespace fathom::testing_values {

using Doubles = std::vector<double>;

// x on a grid of `mantissa_bits` below the leading bit, subnormal under 2^min_exponent; nearest
// even.
inline double RoundTo(double x, int mantissa_bits, int min_exponent) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), min_exponent) - mantissa_bits);
  return std::nearbyint(x / step) * step;
}
inline double Bf16(double x) { return RoundTo(x, 7, -126); }
inline double Bf16Ulp(double x) {
  return std::ldexp(1.0, (x == 0.0 ? -126 : std::max(std::ilogb(x), -126)) - 7);
}

// Smallest power of two that is at least t > 0.
inline double PowerAtLeast(double t) {
  int exponent = 0;
  const double mantissa = std::frexp(t, &exponent);
  return std::ldexp(1.0, mantissa == 0.5 ? exponent - 1 : exponent);
}

// The values that a store in this format keeps, in groups along x.
inline Doubles Quantised(Doubles x, size_t group, double floor, double max_code, int mantissa_bits,
                         int min_exponent) {
  for (size_t begin = 0; begin < x.size(); begin += group) {
    double amax = floor;
    for (size_t i = begin; i < begin + group; ++i) amax = std::max(amax, std::fabs(x[i]));
    const double scale = PowerAtLeast(amax / max_code);
    for (size_t i = begin; i < begin + group; ++i) {
      x[i] = scale *
             std::clamp(RoundTo(x[i] / scale, mantissa_bits, min_exponent), -max_code, max_code);
    }
  }
  return x;
}
inline Doubles AsE4m3(Doubles x, size_t group) {
  return Quantised(std::move(x), group, 1e-4, 448.0, 3, -6);
}
inline Doubles AsE2m1(Doubles x) { return Quantised(std::move(x), 32, 0x1.8p-124, 6.0, 1, 0); }

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int Below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  double Uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_()) / 4294967296.0;
  }
  std::vector<float> Floats(size_t n, double low = -1.0, double high = 1.0) {
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(Uniform(low, high));
    return values;
  }
  // Activations: values that bf16 holds.
  std::vector<float> Bf16s(size_t n, double low = -1.0, double high = 1.0) {
    std::vector<float> values(n);
    for (float& v : values) v = static_cast<float>(Bf16(Uniform(low, high)));
    return values;
  }

 private:
  std::mt19937 engine_;
};

inline Doubles ToDoubles(std::span<const float> x) { return {x.begin(), x.end()}; }

// got is `want`, rounded once to bf16 if `bf16`. `slack` bounds the fp32 arithmetic in front of the
// rounding, relative to the largest wanted value; `ulps` is 0.5 for one rounding, more where a
// rounded intermediate may have landed on the other side.
inline void ExpectValues(bool bf16, std::span<const float> got, const Doubles& want, double slack,
                         double ulps = 0.5) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0.0;
  for (double w : want) largest = std::max(largest, std::fabs(w));
  for (size_t i = 0; i < want.size(); ++i) {
    const double bound = slack * largest + (bf16 ? ulps * Bf16Ulp(want[i]) : 0.0);
    ASSERT_LE(std::fabs(got[i] - want[i]), bound)
        << "element " << i << ": " << got[i] << ", expected " << want[i];
    if (bf16) {
      ASSERT_EQ(got[i], Bf16(got[i])) << "element " << i << " is no bf16 value";
    }
  }
}

inline double RelativeL2(std::span<const float> got, const Doubles& want) {
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

// A matrix as the checkpoint stores it. Starts as zeros with scales of 1.
class TestWeight {
 public:
  TestWeight() = default;
  TestWeight(DType dtype, int rows, int cols) : dtype_(dtype), rows_(rows), cols_(cols) {
    const auto r = static_cast<size_t>(rows);
    const auto c = static_cast<size_t>(cols);
    switch (dtype) {
      case DType::kF8E4M3:
        data_.resize(r * c);
        scale_.assign((r + 127) / 128 * ((c + 127) / 128), 127);
        break;
      case DType::kI8:
        data_.resize(r * c / 2);
        scale_.assign(r * c / 32, 127);
        break;
      case DType::kBF16:
        data_.resize(2 * r * c);
        break;
      default:
        data_.resize(4 * r * c);
    }
  }
  static TestWeight Random(testing_values::Random& random, DType dtype, int rows, int cols) {
    TestWeight w(dtype, rows, cols);
    for (uint8_t& s : w.scale_) s = static_cast<uint8_t>(120 + random.Below(4));
    if (w.quantised()) {
      for (uint8_t& code : w.data_) {
        code = static_cast<uint8_t>(random.Below(256));
        if (dtype == DType::kF8E4M3 && (code & 0x7F) == 0x7F) code = 0;  // NaN
      }
    } else {
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < cols; ++c) w.Set(r, c, Bf16(random.Uniform(-1.0, 1.0)));
      }
    }
    return w;
  }

  // Stores a value that the format holds exactly under the scale in force.
  void Set(int row, int col, double value) {
    const size_t i = Index(row, col);
    switch (dtype_) {
      case DType::kF8E4M3:
        for (int code = 0; code < 256; ++code) {
          data_[i] = static_cast<uint8_t>(code);
          if (At(row, col) == value) return;
        }
        FAIL() << value << " is no e4m3 value here";
      case DType::kI8:
        for (int code = 0; code < 16; ++code) {
          const int shift = col % 2 == 0 ? 0 : 4;  // the even column is in the low nibble
          data_[i / 2] = static_cast<uint8_t>((data_[i / 2] & (0xF0 >> shift)) | (code << shift));
          if (At(row, col) == value) return;
        }
        FAIL() << value << " is no e2m1 value here";
      case DType::kBF16: {
        const auto bits =
            static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
        std::memcpy(&data_[2 * i], &bits, 2);
        break;
      }
      default: {
        const auto f = static_cast<float>(value);
        std::memcpy(&data_[4 * i], &f, 4);
      }
    }
    ASSERT_EQ(At(row, col), value) << "the format does not hold this value";
  }

  [[nodiscard]] double At(int row, int col) const {
    const size_t i = Index(row, col);
    switch (dtype_) {
      case DType::kF8E4M3: {
        const int code = data_[i];
        const int e = code >> 3 & 15;
        const int m = code & 7;
        const double magnitude = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
        const int scale_cols = (cols_ + 127) / 128;
        return (code & 128 ? -magnitude : magnitude) * Scale(row / 128 * scale_cols + col / 128);
      }
      case DType::kI8: {
        static constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
        const int code = data_[i / 2] >> (col % 2 == 0 ? 0 : 4) & 15;
        return (code & 8 ? -1.0 : 1.0) * kMagnitudes[code & 7] *
               Scale(row * (cols_ / 32) + col / 32);
      }
      case DType::kBF16: {
        uint16_t bits = 0;
        std::memcpy(&bits, &data_[2 * i], 2);
        return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
      default: {
        float f = 0.0f;
        std::memcpy(&f, &data_[4 * i], 4);
        return f;
      }
    }
  }

  [[nodiscard]] WeightView view() const {
    return {dtype_, data_.data(), scale_.empty() ? nullptr : scale_.data(), rows_, cols_};
  }
  [[nodiscard]] bool quantised() const { return view().quantised(); }
  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] int cols() const { return cols_; }
  std::vector<uint8_t>& scale() { return scale_; }
  std::vector<uint8_t>& data() { return data_; }
  [[nodiscard]] const std::vector<uint8_t>& scale() const { return scale_; }
  [[nodiscard]] const std::vector<uint8_t>& data() const { return data_; }

  // W x, in double.
  [[nodiscard]] Doubles Times(const Doubles& x) const {
    Doubles y(static_cast<size_t>(rows_));
    for (int r = 0; r < rows_; ++r) {
      for (int c = 0; c < cols_; ++c)
        y[static_cast<size_t>(r)] += At(r, c) * x[static_cast<size_t>(c)];
    }
    return y;
  }

 private:
  [[nodiscard]] size_t Index(int row, int col) const {
    return static_cast<size_t>(row) * static_cast<size_t>(cols_) + static_cast<size_t>(col);
  }
  [[nodiscard]] double Scale(int i) const {
    return std::ldexp(1.0, scale_[static_cast<size_t>(i)] - 127);
  }
  DType dtype_ = DType::kF32;
  int rows_ = 0;
  int cols_ = 0;
  std::vector<uint8_t> data_;
  std::vector<uint8_t> scale_;
};

// RMSNorm of one row, in double.
inline Doubles NaiveRmsNorm(const Doubles& x, const Doubles& weight, double eps) {
  double squares = 0.0;
  for (double v : x) squares += v * v;
  const double rms = std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Doubles out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = weight[i] * x[i] / rms;
  return out;
}

// Rotation of the last 2 * angles.size() channels, adjacent pairs, in double.
inline Doubles NaiveRope(Doubles x, const Doubles& angles) {
  double* pair = x.data() + x.size() - 2 * angles.size();
  for (double angle : angles) {
    const double even = pair[0];
    const double odd = pair[1];
    pair[0] = even * std::cos(angle) - odd * std::sin(angle);
    pair[1] = even * std::sin(angle) + odd * std::cos(angle);
    pair += 2;
  }
  return x;
}

// Product with the Sylvester matrix, entry (a, b) = (-1)^popcount(a & b), over sqrt(size).
inline Doubles NaiveHadamard(const Doubles& x) {
  Doubles out(x.size());
  for (size_t a = 0; a < x.size(); ++a) {
    for (size_t b = 0; b < x.size(); ++b) out[a] += std::popcount(a & b) % 2 == 0 ? x[b] : -x[b];
    out[a] /= std::sqrt(static_cast<double>(x.size()));
  }
  return out;
}

inline Doubles MaybeBf16(bool bf16, Doubles x) {
  if (bf16) {
    for (double& v : x) v = Bf16(v);
  }
  return x;
}

inline double Sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

// [angles][cos, sin] as an operation takes them.
inline void AppendCosSin(const Doubles& angles, std::vector<float>& out) {
  for (double angle : angles) {
    out.push_back(static_cast<float>(std::cos(angle)));
    out.push_back(static_cast<float>(std::sin(angle)));
  }
}

}  // namespace fathom::testing_values
