// Every byte arrives where it belongs, whatever the pieces; a copy that fails ends it.
#include "model/weight_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace fathom {
namespace {

// A device of the host's memory that fails from some copy on.
class FailingMemory final : public DeviceMemory {
 public:
  explicit FailingMemory(int64_t good_copies = INT64_MAX) : good_copies_(good_copies) {}

  Status CopyIn(std::byte* to, std::span<const std::byte> from) override {
    if (num_copies_++ >= good_copies_) return Unavailable("the device is gone");
    largest_copy_ = std::max(largest_copy_, static_cast<int64_t>(from.size()));
    std::memcpy(to, from.data(), from.size());
    return OkStatus();
  }
  Status CopyOut(std::span<std::byte>, const std::byte*) override { return Internal("unused"); }
  Status CopyWithin(std::byte*, const std::byte*, int64_t) override { return Internal("unused"); }
  [[nodiscard]] bool host_readable() const override { return false; }
  [[nodiscard]] Result<MemoryState> State() const override { return MemoryState{}; }

  [[nodiscard]] int64_t num_copies() const { return num_copies_; }
  [[nodiscard]] int64_t largest_copy() const { return largest_copy_; }

 protected:
  Result<std::byte*> AllocateBytes(int64_t bytes) override {
    return new std::byte[static_cast<size_t>(bytes)];  // NOLINT: given back below
  }
  void FreeBytes(std::byte* data) override { delete[] data; }

 private:
  int64_t good_copies_;
  int64_t num_copies_ = 0;
  int64_t largest_copy_ = 0;
};

struct Tensors {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<int64_t> offsets;  // aligned, one behind the other
  int64_t total = 0;
};

Tensors RandomTensors(std::mt19937& random, int count, unsigned most) {
  Tensors tensors;
  for (int i = 0; i < count; ++i) {
    std::vector<std::byte>& bytes = tensors.bytes.emplace_back(random() % (most + 1));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    tensors.offsets.push_back(tensors.total);
    tensors.total += (static_cast<int64_t>(bytes.size()) + DeviceMemory::kAlignment - 1) /
                     DeviceMemory::kAlignment * DeviceMemory::kAlignment;
  }
  return tensors;
}

TEST(CopyingWriter, EveryByteArrivesWhateverThePieces) {
  std::mt19937 random(3);
  for (const int64_t piece_bytes : {int64_t{23}, int64_t{300}, int64_t{4096}, int64_t{1} << 20}) {
    const Tensors tensors = RandomTensors(random, 40, 3000);
    FailingMemory device;
    HostDeviceMemory host;
    const DeviceBuffer near = device.Allocate(tensors.total).value();
    const DeviceBuffer far = host.Allocate(tensors.total).value();
    std::vector<WeightCopy> copies;
    uint64_t bytes = 0;
    for (size_t i = 0; i < tensors.bytes.size(); ++i) {
      const bool on_host = i % 5 == 2 || i % 5 == 3;
      const DeviceBuffer& buffer = on_host ? far : near;
      copies.push_back({tensors.bytes[i], buffer.data() + tensors.offsets[i],
                        on_host ? static_cast<DeviceMemory*>(&host) : &device});
      bytes += tensors.bytes[i].size();
    }
    CopyingWriter writer(host, piece_bytes);
    uint64_t last = 0, total = 0;
    const Status status = writer.Write(copies, [&](uint64_t done, uint64_t all) {
      EXPECT_GT(done, last);
      last = done;
      total = all;
    });
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(last, total);
    EXPECT_GE(total, bytes);  // gaps between tensors travel along
    EXPECT_LE(device.largest_copy(), piece_bytes);
    for (size_t i = 0; i < copies.size(); ++i) {
      EXPECT_EQ(std::memcmp(copies[i].to, tensors.bytes[i].data(), tensors.bytes[i].size()), 0)
          << "tensor " << i << ", pieces of " << piece_bytes;
    }
  }
}

TEST(CopyingWriter, NeighboursTravelTogether) {
  std::mt19937 random(5);
  const Tensors tensors = RandomTensors(random, 100, 500);
  FailingMemory device;
  HostDeviceMemory host;
  const DeviceBuffer buffer = device.Allocate(tensors.total).value();
  std::vector<WeightCopy> copies;
  for (size_t i = 0; i < tensors.bytes.size(); ++i) {
    copies.push_back({tensors.bytes[i], buffer.data() + tensors.offsets[i], &device});
  }
  CopyingWriter writer(host);
  ASSERT_TRUE(writer.Write(copies, {}).ok());
  EXPECT_EQ(device.num_copies(), 1);
}

TEST(CopyingWriter, ACopyThatFailsEndsItWithItsError) {
  std::mt19937 random(9);
  const Tensors tensors = RandomTensors(random, 60, 3000);
  for (const int64_t good : {0, 1, 17}) {
    FailingMemory device(good);
    HostDeviceMemory host;
    const DeviceBuffer buffer = device.Allocate(tensors.total).value();
    std::vector<WeightCopy> copies;
    for (size_t i = 0; i < tensors.bytes.size(); ++i) {
      copies.push_back({tensors.bytes[i], buffer.data() + tensors.offsets[i], &device});
    }
    CopyingWriter writer(host, 256);
    EXPECT_EQ(writer.Write(copies, {}).code(), StatusCode::kUnavailable);
    EXPECT_EQ(device.num_copies(), good + 1);
  }
}

TEST(CopyingWriter, NothingIsNothing) {
  HostDeviceMemory host;
  CopyingWriter writer(host);
  EXPECT_TRUE(writer.Write({}, {}).ok());
}

}  // namespace
}  // namespace fathom
