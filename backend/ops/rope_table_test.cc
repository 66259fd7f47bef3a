#include "backend/ops/rope_table.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

class RopeTable : public OpTest {
 protected:
  std::vector<float> Table(const std::vector<Position>& positions,
                           const std::vector<float>& frequencies) {
    const auto n = static_cast<int64_t>(positions.size());
    const auto pairs = static_cast<int64_t>(frequencies.size());
    std::vector<float> out(positions.size() * frequencies.size() * 2, -9.0f);
    const Status status = backend().RopeTable({.positions = positions,
                                               .frequencies = {frequencies.data(), pairs},
                                               .cos_sin = {out.data(), n, pairs, 2}});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return out;
  }
};
FATHOM_ON_ALL_BACKENDS(RopeTable);

TEST_P(RopeTable, PositionZeroDoesNotRotate) {
  EXPECT_THAT(Table({0}, {1.0f, 0.5f}), testing::ElementsAre(1, 0, 1, 0));
}

TEST_P(RopeTable, HoldsCosThenSinOfEveryPositionAndFrequency) {
  const std::vector<Position> positions = {1, 300, 7, 300};
  const std::vector<float> frequencies = {1.0f, 0.687656022f, 3.63553858e-3f};
  const std::vector<float> table = Table(positions, frequencies);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t k = 0; k < 3; ++k) {
      const double angle = static_cast<float>(positions[i]) * frequencies[k];
      EXPECT_EQ(table[(i * 3 + k) * 2], static_cast<float>(std::cos(angle)));
      EXPECT_EQ(table[(i * 3 + k) * 2 + 1], static_cast<float>(std::sin(angle)));
    }
  }
}

// The angle is an fp32 product: near 1M it is off the exact one, and that belongs to the model.
TEST_P(RopeTable, AngleIsRoundedToFp32Once) {
  const Position position = 1048372;
  const float f = 0.687656022f;
  const double exact = static_cast<double>(position) * static_cast<double>(f);
  const double rounded = static_cast<float>(exact);
  ASSERT_GT(std::fabs(std::cos(rounded) - std::cos(exact)), 1e-3) << "choose another position";
  const std::vector<float> table = Table({position}, {f});
  EXPECT_EQ(table[0], static_cast<float>(std::cos(rounded)));
  EXPECT_EQ(table[1], static_cast<float>(std::sin(rounded)));
}

TEST_P(RopeTable, ChecksItsArguments) {
  std::vector<float> m(64);
  const std::vector<Position> positions = {0, 1, 2};
  const RopeTableArgs good = {
      .positions = positions, .frequencies = {m.data(), 4}, .cos_sin = {m.data(), 3, 4, 2}};
  ASSERT_STATUS_OK(Check(good));
  RopeTableArgs bad = good;
  bad.cos_sin = {m.data(), 2, 4, 2};
  ExpectRejected(backend().RopeTable(bad), "cos_sin");
  bad.cos_sin = {m.data(), 3, 2, 4};
  ExpectRejected(backend().RopeTable(bad), "cos_sin");
  bad = good;
  bad.frequencies = {m.data(), 4, 2};
  ExpectRejected(backend().RopeTable(bad), "frequencies");
}

}  // namespace
}  // namespace fathom
