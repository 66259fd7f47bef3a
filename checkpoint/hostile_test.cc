// Damaged and hostile files: each must end in an error that names the file, never in a crash, a
// hang or memory beyond the file's size. Run under the asan preset as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string LengthPrefix(uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i) & 0xff);
  return out;
}

// A file with this header (padded to 8 bytes) and so much data.
std::string FileWith(std::string header, size_t data_bytes) {
  header.append((8 - header.size() % 8) % 8, ' ');
  return LengthPrefix(header.size()) + header + std::string(data_bytes, '\1');
}

// One tensor "a", everything but the last part of its entry given.
std::string OneTensor(const std::string& entry, size_t data_bytes) {
  return FileWith("{\"a\":{" + entry + "}}", data_bytes);
}

constexpr const char* kValidHeader =
    R"({"__metadata__":{"format":"pt"},)"
    R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
    R"("c":{"dtype":"F8_E4M3","shape":[8],"data_offsets":[32,40]}})";

std::string ValidFile() { return FileWith(kValidHeader, 40); }

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// The valid header with one piece changed.
std::string Changed(const std::string& from, const std::string& to, size_t data_bytes = 40) {
  return FileWith(Replaced(kValidHeader, from, to), data_bytes);
}

struct HostileFile {
  const char* name;
  std::string bytes;
  const char* expected;  // in the message
};

std::vector<HostileFile> HostileFiles() {
  const std::string long_name(3'000'000, 'n');
  std::string many_dims = "1";
  for (int i = 0; i < 8; ++i) many_dims += ",1";
  return {
      {"Empty", "", "0 bytes are too few"},
      {"SevenBytes", std::string(7, '\0'), "7 bytes are too few"},
      {"ZeroHeader", LengthPrefix(0), "does not begin with {"},
      {"HeaderBeyondFile", LengthPrefix(3) + "{}", "header of 3 bytes in a file of 10"},
      {"HeaderLength32Bits", LengthPrefix(uint64_t{1} << 32) + "{}", "header of 4294967296 bytes"},
      {"HeaderLength63Bits", LengthPrefix(uint64_t{1} << 63) + "{}", "header of"},
      {"HeaderLengthAllOnes", LengthPrefix(~uint64_t{0}) + "{}", "header of"},
      {"HeaderLengthWrapsTo8", LengthPrefix(~uint64_t{0} - 7) + "{}", "header of"},
      {"NotSafetensors", std::string("PK\3\4 a zip file, for example........"), "not safetensors"},
      {"HeaderIsArray", FileWith("[]", 0), "does not begin with {"},
      {"HeaderIsSpace", FileWith("  {}", 0), "does not begin with {"},
      {"HeaderIsOpen", FileWith("{", 0), "not well-formed JSON"},
      {"HeaderHasTail", FileWith("{}{}", 0), "not well-formed JSON"},
      {"HeaderHasNul", FileWith(std::string("{}\0", 3), 0), "NUL"},
      {"HeaderTrailingComma", Changed("]}}", "]},}"), "not well-formed JSON"},
      {"HeaderOpenString", Changed("\"c\"", "\"c"), "not well-formed JSON"},
      {"NameNotUtf8", Changed("\"b\"", "\"b\xff\xfe\""), "not well-formed JSON"},
      {"NameOverlongUtf8", Changed("\"b\"", "\"b\xc0\xaf\""), "not well-formed JSON"},
      {"NameLoneSurrogate", Changed("\"b\"", "\"\\ud800\""), "not well-formed JSON"},
      {"DeepArrays", FileWith("{\"a\":" + std::string(1'000'000, '['), 0), "an array where"},
      {"DeepShape", OneTensor("\"shape\":" + std::string(1'000'000, '['), 0), "an array where"},
      {"DeepObjects",
       FileWith(
           [] {
             std::string text;
             for (int i = 0; i < 200'000; ++i) text += "{\"a\":";
             return text;
           }(),
           0),
       "an object where"},
      {"EntryIsNumber", FileWith("{\"a\":1}", 0), "a number where"},
      {"EntryIsNull", FileWith("{\"a\":null}", 0), "null where"},
      {"EntryIsString", FileWith("{\"a\":\"F32\"}", 0), "a string where"},
      {"EntryIsEmpty", OneTensor("", 0), "no dtype"},
      {"NoShape", OneTensor(R"("dtype":"F32","data_offsets":[0,4])", 4), "no shape"},
      {"NoOffsets", OneTensor(R"("dtype":"F32","shape":[1])", 4), "no data_offsets"},
      {"UnknownField", OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"y")", 4),
       "a string where"},
      {"TwoDtypes", OneTensor(R"("dtype":"F32","dtype":"I8","shape":[1],"data_offsets":[0,4])", 4),
       "two dtypes"},
      {"TwoShapes", OneTensor(R"("dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,4])", 4),
       "two entries shape"},
      {"TwoOffsets",
       OneTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"data_offsets":[0,4])", 4),
       "two entries data_offsets"},
      {"UnknownDtype", Changed("BF16", "F8_E5M2"), "\"F8_E5M2\""},
      {"LowerCaseDtype", Changed("BF16", "bf16"), "\"bf16\""},
      {"DtypeWithControls", Changed("BF16", "\\u001b[2J"), "\\x1b[2J"},
      {"DtypeIsNumber", Changed("\"BF16\"", "16"), "a number where"},
      {"DtypeIsArray", Changed("\"BF16\"", "[\"BF16\"]"), "an array where"},
      {"ShapeNegative", Changed("[2,3]", "[-2,-3]"), "a negative number"},
      {"ShapeFloat", Changed("[2,3]", "[2.0,3]"), "no 64-bit integer"},
      {"ShapeExponent", Changed("[2,3]", "[2e0,3]"), "no 64-bit integer"},
      {"ShapeHuge", Changed("[2,3]", "[18446744073709551616,3]"), "no 64-bit integer"},
      {"ShapeEndlessNumber", Changed("[2,3]", "[1e99999]"), "not well-formed JSON"},
      {"Shape63Bits", Changed("[2,3]", "[9223372036854775808]"), "is too large"},
      {"ShapeString", Changed("[2,3]", "[\"2\",3]"), "a string where"},
      {"ShapeNull", Changed("[2,3]", "[null]"), "null where"},
      {"ShapeTrue", Changed("[2,3]", "[true]"), "a boolean where"},
      {"ShapeIsNumber", Changed("[2,3]", "6"), "a number where"},
      {"ShapeRank9",
       OneTensor("\"dtype\":\"I8\",\"shape\":[" + many_dims + "],\"data_offsets\":[0,1]", 1),
       "too many dimensions"},
      // 2^32 * 2^32 * 4 and 2^62 * 4 wrap to 0, 2^62 + 6 wraps to 24 as F32.
      {"ShapeWrapsToZero",
       Changed("[2,3],\"data_offsets\":[0,24]", "[4294967296,4294967296],\"data_offsets\":[0,0]"),
       "overflows"},
      {"ShapeWrapsToSize", Changed("[2,3]", "[4611686018427387910]"), "overflows"},
      {"ShapeTooSmall", Changed("[2,3]", "[2,2]"), "needs 16"},
      {"ShapeTooLarge", Changed("[2,3]", "[2,4]"), "needs 32"},
      {"ShapeWithZero", Changed("[2,3]", "[0,9223372036854775807]"), "needs 0"},
      {"DtypeTooWide", Changed("BF16", "F64"), "needs 32"},
      {"OffsetsReversed", Changed("[24,32]", "[32,24]"), "end before they begin"},
      {"OffsetsOne", Changed("[24,32]", "[24]"), "must be [begin, end]"},
      {"OffsetsNone", Changed("[24,32]", "[]"), "must be [begin, end]"},
      {"OffsetsThree", Changed("[24,32]", "[24,32,40]"), "a number where"},
      {"OffsetsNegative", Changed("[24,32]", "[-8,0]"), "a negative number"},
      {"OffsetsFloat", Changed("[24,32]", "[24.0,32]"), "no 64-bit integer"},
      {"OffsetsObject", Changed("[24,32]", "{\"begin\":24}"), "an object where"},
      {"OffsetsBeyondFile", Changed("[32,40]", "[40,48]"), "reach beyond the file"},
      {"OffsetsBeyond32Bits", Changed("[32,40]", "[4294967328,4294967336]"), "beyond the file"},
      {"OffsetsBeyond40Bits", Changed("[32,40]", "[1099511627808,1099511627816]"), "beyond"},
      {"OffsetsBeyond63Bits", Changed("[32,40]", "[9223372036854775808,9223372036854775816]"),
       "beyond the file"},
      {"OffsetsAtTheEndOf64Bits", Changed("[32,40]", "[18446744073709551607,18446744073709551615]"),
       "beyond the file"},
      {"OffsetsAbove64Bits", Changed("[32,40]", "[18446744073709551616,18446744073709551624]"),
       "no 64-bit integer"},
      {"OverlapWhole", Changed("[24,32]", "[0,8]"), "overlapping"},
      {"OverlapPart", Changed("[24,32]", "[22,30]"), "overlapping"},
      {"OverlapSame", Changed("[32,40]", "[24,32]", 32), "overlapping"},
      {"GapInside", Changed("[32,40]", "[36,44]", 44), "gap"},
      {"GapAtStart", OneTensor(R"("dtype":"I8","shape":[4],"data_offsets":[4,8])", 8), "gap"},
      {"GapAtEnd", FileWith(kValidHeader, 41), "the file has 41"},
      {"DataWithoutTensors", FileWith("{}", 1), "the file has 1"},
      {"NoData", FileWith(kValidHeader, 0), "truncated"},
      {"LastByteMissing", FileWith(kValidHeader, 39), "truncated"},
      {"DuplicateName", Changed("\"b\"", "\"a\""), "\"a\": stored twice"},
      {"DuplicateNameEscaped", Changed("\"b\"", "\"\\u0061\""), "\"a\": stored twice"},
      {"TwoMetadata",
       Changed("\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[24,32]}",
               "\"__metadata__\":{}"),
       "two __metadata__"},
      {"MetadataNumber", Changed("\"pt\"", "1"), "a number where"},
      {"MetadataObject", Changed("\"pt\"", "{}"), "an object where"},
      {"MetadataArray", Changed("\"pt\"", "[]"), "an array where"},
      {"MetadataIsString", Changed("{\"format\":\"pt\"}", "\"pt\""), "a string where"},
      {"Unaligned",
       FileWith(R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}})",
                5),
       "not aligned"},
      {"UnalignedHeader",
       LengthPrefix(59) + R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4])" +
           std::string(5, ' ') + "}}" + std::string(4, '\1'),
       "not aligned"},
      {"LongName", FileWith("{\"" + long_name + "\":{}}", 0), "no dtype"},
  };
}

class HostileSafetensors : public ::testing::TestWithParam<HostileFile> {};
void PrintTo(const HostileFile& file, std::ostream* out) { *out << file.name; }

TEST(HostileSafetensorsBase, TheFileThatTheCasesChangeIsValid) {
  TempDirectory directory;
  WriteText(directory.path() / "x.safetensors", ValidFile());
  auto file = SafetensorsFile::Open(directory.path() / "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->tensors().size(), 3u);
}

TEST_P(HostileSafetensors, IsRefusedAndNamed) {
  TempDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  WriteText(path, GetParam().bytes);
  auto file = SafetensorsFile::Open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(file.status().message(),
              AllOf(HasSubstr(path.string()), HasSubstr(GetParam().expected)));
  EXPECT_LT(file.status().message().size(), 2000u);  // whatever the file says
}
INSTANTIATE_TEST_SUITE_P(Files, HostileSafetensors, ::testing::ValuesIn(HostileFiles()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(HostileSafetensorsCuts, EveryCutOfASmallFileIsRefused) {
  TempDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  const std::string valid = ValidFile();
  for (size_t size = 0; size < valid.size(); ++size) {
    WriteText(path, valid.substr(0, size));
    auto file = SafetensorsFile::Open(path);
    ASSERT_FALSE(file.ok()) << size;
    ASSERT_THAT(file.status().message(), HasSubstr(path.string()));
  }
}

// Any byte of the header may be anything: the answer may be yes or no, but nothing may be out of
// bounds.
TEST(HostileSafetensorsFlips, RandomDamageNeverCrashes) {
  const std::string valid = ValidFile();
  const std::string tiny = ReadText(TinyA() / "model.safetensors").substr(0, 70'000);
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const bool small = round % 20 != 0;
    std::string text = small ? valid : tiny;
    const size_t end = small ? text.size() - 40 : size_t{57'000};
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips) {
      text[random() % end] = static_cast<char>(random() % 3 == 0 ? '0' + random() % 10 : random());
    }
    // The parser wants an aligned address, as a mapping has.
    std::vector<uint64_t> aligned((text.size() + 7) / 8);
    std::memcpy(aligned.data(), text.data(), text.size());
    const auto bytes = std::as_bytes(std::span(aligned)).first(text.size());
    auto parsed = ParseSafetensors(bytes, "damaged");
    if (!parsed.ok()) {
      ++refused;
      ASSERT_THAT(parsed.status().message(), HasSubstr("damaged: "));
      continue;
    }
    for (const StoredTensor& tensor : *parsed) {
      ASSERT_EQ(TensorBytes(tensor.dtype, tensor.shape), tensor.data.size());
      ASSERT_GE(tensor.data.data(), bytes.data());
      ASSERT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
    }
  }
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace fathom
