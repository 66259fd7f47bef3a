#include "checkpoint/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// tiny-a with a few bytes changed.
class Verify : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tiny = SafetensorsFile::Open(TinyA() / "model.safetensors");
    ASSERT_TRUE(tiny.ok()) << tiny.status().ToString();
    file_.emplace(std::move(*tiny));
    tensors_ = file_->tensors();
  }
  void Put(const std::string& name, size_t offset, std::string_view bytes) {
    const auto tensor = std::find_if(tensors_.begin(), tensors_.end(),
                                     [&](const StoredTensor& t) { return t.name == name; });
    ASSERT_NE(tensor, tensors_.end()) << name;
    copies_.emplace_back(tensor->data.begin(), tensor->data.end());
    std::memcpy(copies_.back().data() + offset, bytes.data(), bytes.size());
    tensor->data = copies_.back();
  }
  Result<VerifyReport> Run(int num_threads = 2) {
    std::filesystem::copy_file(TinyA() / "config.json", directory_.path() / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    FATHOM_RETURN_IF_ERROR(WriteSafetensors(directory_.path() / "model.safetensors", tensors_));
    FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory_.path()));
    ThreadPool pool(num_threads);
    return VerifyValues(checkpoint, pool, progress_);
  }

  TempDirectory directory_;
  std::optional<SafetensorsFile> file_;
  std::vector<StoredTensor> tensors_;
  std::deque<std::vector<std::byte>> copies_;
  VerifyProgress progress_;
};

TEST_F(Verify, RangesEqualALoopOverTheTensors) {
  uint64_t last_done = 0;
  uint64_t last_total = 0;
  progress_ = [&](uint64_t done, uint64_t total) {
    EXPECT_GE(done, last_done);
    last_done = done;
    last_total = total;
  };
  for (int num_threads : {1, 3}) {
    last_done = 0;
    auto report = Run(num_threads);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(last_done, last_total);
    EXPECT_EQ(report->bytes_read, last_total);
    uint64_t num_scales = 0;
    for (const ScaleRange& range : report->scales) {
      int low = 1000;
      int high = -1000;
      uint64_t count = 0;
      uint64_t zeros = 0;
      for (const StoredTensor& tensor : file_->tensors()) {
        if (tensor.dtype != DType::kF8E8M0 || PartOf(tensor.name) != range.part ||
            tensor.name.starts_with("mtp.") != range.mtp) {
          continue;
        }
        for (const std::byte byte : tensor.data) {
          low = std::min(low, static_cast<int>(byte) - 127);
          high = std::max(high, static_cast<int>(byte) - 127);
          zeros += byte == std::byte{0} ? 1u : 0u;
          ++count;
        }
      }
      EXPECT_GT(count, 0u);
      EXPECT_EQ(range.num_scales, count);
      EXPECT_EQ(range.num_zero_bytes, zeros);
      EXPECT_EQ(range.min_exponent, low);
      EXPECT_EQ(range.max_exponent, high);
      num_scales += count;
    }
    uint64_t stored = 0;
    for (const StoredTensor& tensor : file_->tensors()) {
      if (tensor.dtype == DType::kF8E8M0) stored += tensor.data.size();
    }
    EXPECT_EQ(num_scales, stored);
  }
}

TEST_F(Verify, ScaleByte255IsNamedWithItsElement) {
  Put("layers.2.attn.wq_b.scale", 3, "\xff");
  Put("mtp.0.ffn.experts.1.w2.scale", 5, "\xff\xff");
  auto report = Run();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(report.status().message(),
              AllOf(HasSubstr("2 problems"),
                    HasSubstr("layers.2.attn.wq_b.scale [4, 1]: element 3 is scale byte 255"),
                    HasSubstr("mtp.0.ffn.experts.1.w2.scale"), HasSubstr(": element 5 is")));
}

TEST_F(Verify, ZeroScaleBytesAreCounted) {
  Put("layers.0.attn.wq_a.scale", 0, std::string_view("\0", 1));
  auto report = Run();
  ASSERT_TRUE(report.ok()) << report.status().ToString();
  const auto attention = std::find_if(report->scales.begin(), report->scales.end(),
                                      [](auto& r) { return r.part == Part::kAttention && !r.mtp; });
  ASSERT_NE(attention, report->scales.end());
  EXPECT_EQ(attention->num_zero_bytes, 1u);
  EXPECT_EQ(attention->min_exponent, -127);
}

TEST_F(Verify, NumbersThatAreNoneAreNamed) {
  Put("layers.1.attn_norm.weight", 2 * 7, std::string_view("\x80\x7f", 2));        // infinity
  Put("embed.weight", 2 * 1000, std::string_view("\xc0\xff", 2));                  // NaN
  Put("layers.0.attn.attn_sink", 4 * 1, std::string_view("\x01\x00\x80\x7f", 4));  // NaN
  auto report = Run();
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(
      report.status().message(),
      AllOf(HasSubstr("3 problems"), HasSubstr("layers.1.attn_norm.weight [256]: element 7"),
            HasSubstr(": element 1000 is NaN"),
            HasSubstr("layers.0.attn.attn_sink [4]: element 1 is NaN or infinite")));
}

}  // namespace
}  // namespace fathom
