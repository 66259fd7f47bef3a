// The program's `inspect`, and models named by id.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Outcome {
  int status = -1;
  std::string out;  // standard output and error
};

// Arguments come from the tests; none needs quoting.
Outcome RunFathom(const std::string& arguments, const std::string& environment = "") {
  const std::string command = environment + " " FATHOM_BINARY_DIR "/fathom " + arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  std::array<char, 4096> part{};
  while (const size_t n = std::fread(part.data(), 1, part.size(), pipe)) {
    outcome.out.append(part.data(), n);
  }
  const int status = ::pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

class Inspect : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/fathom_inspect_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }
  fs::path directory_;
};

TEST_F(Inspect, ConfigAloneGivesThePublishedNumbers) {
  const std::string presets = ProjectPath("models/presets").string();
  const Outcome flash = RunFathom("inspect " + presets + "/flash.json");
  EXPECT_EQ(flash.status, 0) << flash.out;
  for (const char* text :
       {"0-1 ", "even 2-42 ", "odd 3-41 ", "147,169,738,752", "5,400,554,112", "245,085,276",
        "159,609,485,896 (148.65 GiB)", "11,217,580,396 (10.45 GiB)", "284,332,240,471",
        "290,942,289,362", "13,799,632,471", "none here; not checked"}) {
    EXPECT_THAT(flash.out, HasSubstr(text));
  }
  const Outcome pro = RunFathom("inspect --json " + presets + "/pro.json");
  ASSERT_EQ(pro.status, 0) << pro.out;
  const Json json = Json::parse(pro.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << pro.out;
  EXPECT_EQ(json["total"]["main_bytes"], 850'748'205'004u);
  EXPECT_EQ(json["total"]["mtp_bytes"], 13'956'587'692u);
  EXPECT_EQ(json["total"]["bytes_per_token"], 39'666'618'460u);
  EXPECT_EQ(json["parts"]["attention"]["main_bytes"], 20'264'787'840u);
  EXPECT_EQ(json["dtypes"]["I8"]["tensors"], 71'424);
  EXPECT_EQ(json["weights_checked"], false);
  EXPECT_TRUE(json["has_tokenizer"].is_null());
}

TEST_F(Inspect, BundledModelIsReadAndVerified) {
  const Outcome text = RunFathom("inspect --verify --threads 2");
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, AllOf(HasSubstr("fathom-nano"), HasSubstr("2 file(s)"),
                              HasSubstr("routed experts, MTP"), HasSubstr("every scale has")));
  const Json json = Json::parse(RunFathom("inspect --json --verify").out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["weights_checked"], true);
  EXPECT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(json["has_tokenizer"], true);
  EXPECT_GT(json["verified_bytes"], 0);
  // Three parts with scales in the main layers, and with its projections four in the MTP block.
  EXPECT_EQ(json["scales"].size(), 7u);
}

TEST_F(Inspect, BadScaleIsAnErrorThatNamesIt) {
  const fs::path tiny = ProjectPath("tests/data/tiny-a/checkpoint");
  auto file = SafetensorsFile::Open(tiny / "model.safetensors");
  ASSERT_TRUE(file.ok());
  std::vector<StoredTensor> tensors = file->tensors();
  std::vector<std::byte> bad;
  for (StoredTensor& tensor : tensors) {
    if (tensor.name != "layers.4.ffn.experts.3.w1.scale") continue;
    bad.assign(tensor.data.begin(), tensor.data.end());
    bad[17] = std::byte{255};
    tensor.data = bad;
  }
  fs::copy_file(tiny / "config.json", directory_ / "config.json");
  ASSERT_TRUE(WriteSafetensors(directory_ / "model.safetensors", tensors).ok());
  EXPECT_EQ(RunFathom("inspect " + directory_.string()).status, 0) << "not read without --verify";
  const Outcome verified = RunFathom("inspect --verify " + directory_.string());
  EXPECT_EQ(verified.status, 1);
  EXPECT_THAT(verified.out, AllOf(HasSubstr("layers.4.ffn.experts.3.w1.scale"),
                                  HasSubstr("element 17"), HasSubstr("255")));
}

TEST_F(Inspect, VerifyNeedsWeights) {
  const std::string config = ProjectPath("models/presets/flash.json").string();
  const Outcome outcome = RunFathom("inspect --verify " + config);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("name the directory"));
}

TEST_F(Inspect, IdsAreLookedUpInTheCacheByEveryCommand) {
  const fs::path repository = directory_ / "models--acme--nano";
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  fs::create_directories(repository / "refs");
  fs::create_directories(repository / "snapshots");
  std::ofstream(repository / "refs" / "main") << commit;
  fs::create_directory_symlink(fs::absolute(ProjectPath("models/fathom-nano")),
                               repository / "snapshots" / commit);
  const std::string cache = "HF_HUB_CACHE=" + directory_.string();
  for (const char* command : {"inspect acme/nano", "tokenize -m acme/nano hi",
                              "generate -m acme/nano --max-tokens 1 hi"}) {
    const Outcome outcome = RunFathom(command, cache);
    EXPECT_EQ(outcome.status, 0) << command << ": " << outcome.out;
  }
  for (const char* command :
       {"inspect acme/other", "tokenize -m acme/other hi", "generate -m acme/other hi",
        "serve -m acme/other", "inspect acme/nano@v2"}) {
    const Outcome outcome = RunFathom(command, cache);
    EXPECT_EQ(outcome.status, 1) << command;
    EXPECT_THAT(outcome.out, AllOf(HasSubstr(directory_.string()), HasSubstr("hf download acme/")))
        << command;
  }
}

}  // namespace
}  // namespace fathom
