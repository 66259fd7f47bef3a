// Memory of host backends; that of a device is tested with its backend.
#include "backend/device_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace fathom {
namespace {

TEST(HostDeviceMemory, BuffersAreAlignedAndKeepWhatIsCopiedIn) {
  HostDeviceMemory memory;
  for (const int64_t bytes : {1, 255, 256, 1000}) {
    Result<DeviceBuffer> buffer = memory.Allocate(bytes);
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % DeviceMemory::kAlignment, 0u);
    std::vector<std::byte> in(static_cast<size_t>(bytes), std::byte{0x5A});
    std::vector<std::byte> out(in.size());
    ASSERT_TRUE(memory.CopyIn(buffer->data(), in).ok());
    ASSERT_TRUE(memory.CopyOut(out, buffer->data()).ok());
    EXPECT_EQ(out, in);
  }
}

TEST(HostDeviceMemory, CopiesWithinItselfAndSaysThatTheHostMayReadIt) {
  HostDeviceMemory memory;
  EXPECT_TRUE(memory.host_readable());
  const DeviceBuffer buffer = memory.Allocate(8).value();
  const std::vector<std::byte> in = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  ASSERT_TRUE(memory.CopyIn(buffer.data(), in).ok());
  ASSERT_TRUE(memory.CopyWithin(buffer.data() + 4, buffer.data(), 4).ok());
  EXPECT_EQ(std::vector<std::byte>(buffer.data() + 4, buffer.data() + 8), in);
  const Result<MemoryState> state = memory.State();
  ASSERT_TRUE(state.ok()) << state.status().ToString();
  EXPECT_EQ(state->name, "host memory");
  EXPECT_LE(state->free_bytes, state->total_bytes);
}

TEST(HostDeviceMemory, MovedBuffersAreGivenBackOnce) {
  HostDeviceMemory memory;
  DeviceBuffer first = memory.Allocate(64).value();
  std::byte* const data = first.data();
  DeviceBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);      // NOLINT(bugprone-use-after-move): what a move leaves
  second = memory.Allocate(32).value();  // gives the first one back; the address sanitizer watches
  EXPECT_EQ(second.bytes(), 32);
}

TEST(HostDeviceMemory, SizesThatCannotBeAreErrors) {
  HostDeviceMemory memory;
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_EQ(memory.Allocate(bytes).status().code(), StatusCode::kInvalidArgument) << bytes;
  }
  for (const int64_t bytes : {INT64_MAX, INT64_MAX / 2}) {
    EXPECT_EQ(memory.Allocate(bytes).status().code(), StatusCode::kOutOfMemory) << bytes;
  }
}

}  // namespace
}  // namespace fathom
