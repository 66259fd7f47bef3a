#include "checkpoint/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/test_data.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

// A cache as `hf download` leaves it: blobs, and a snapshot of links to them.
class HubCache : public ::testing::Test {
 protected:
  fs::path hub() const { return directory_.path() / "hub"; }
  fs::path repository() const { return hub() / "models--acme--tiny"; }
  fs::path snapshot() const { return repository() / "snapshots" / kCommit; }

  void AddRef(const std::string& name, const std::string& commit) {
    fs::create_directories((repository() / "refs" / name).parent_path());
    WriteText(repository() / "refs" / name, commit);
  }
  void AddFile(const std::string& name, const std::string& text) {
    fs::create_directories(repository() / "blobs");
    fs::create_directories(snapshot());
    WriteText(repository() / "blobs" / ("blob-" + name), text);
    fs::create_symlink(fs::path("../../blobs") / ("blob-" + name), snapshot() / name);
  }
  void AddIndex(int num_shards) {
    nlohmann::json index = {{"weight_map", nlohmann::json::object()}};
    for (int i = 1; i <= num_shards; ++i) {
      const std::string shard = "model-0000" + std::to_string(i) + "-of-00005.safetensors";
      index["weight_map"]["t" + std::to_string(i)] = shard;
    }
    AddFile("model.safetensors.index.json", index.dump());
  }
  Result<ModelLocation> Locate(const std::string& argument,
                               ModelNeed need = ModelNeed::kWeights) const {
    return LocateModel(argument, need, hub());
  }
  std::string Failure(const std::string& argument, ModelNeed need = ModelNeed::kWeights) const {
    auto location = Locate(argument, need);
    EXPECT_FALSE(location.ok()) << argument;
    return location.ok() ? "" : location.status().message();
  }

  TempDirectory directory_;
};

TEST_F(HubCache, CompleteSnapshotIsFoundThroughItsBranch) {
  AddRef("main", std::string(kCommit) + "\n");
  AddFile("config.json", "{}");
  AddFile("model.safetensors", "x");
  auto location = Locate("acme/tiny");
  ASSERT_TRUE(location.ok()) << location.status().ToString();
  EXPECT_EQ(location->name, "acme/tiny");
  EXPECT_EQ(location->directory, snapshot());
  EXPECT_EQ(location->config, snapshot() / "config.json");
  EXPECT_TRUE(location->has_weights);
}

TEST_F(HubCache, RevisionIsABranchATagOrACommit) {
  AddRef("refs/pr/7", kCommit);
  AddRef("v1.0", kCommit);
  AddFile("config.json", "{}");
  AddFile("model.safetensors", "x");
  for (const std::string revision : {"refs/pr/7", "v1.0", kCommit}) {
    auto location = Locate("acme/tiny@" + revision);
    ASSERT_TRUE(location.ok()) << location.status().ToString();
    EXPECT_EQ(location->directory, snapshot());
  }
  EXPECT_THAT(Failure("acme/tiny"),
              AllOf(HasSubstr("\"main\" is not in"), HasSubstr("hf download acme/tiny"),
                    Not(HasSubstr("--revision"))));
  EXPECT_THAT(Failure("acme/tiny@v2"), HasSubstr("hf download acme/tiny --revision v2"));
}

TEST_F(HubCache, AbsentModelSaysWhereItLookedAndHowToFetchIt) {
  EXPECT_THAT(Failure("acme/tiny"),
              AllOf(HasSubstr("model 'acme/tiny'"), HasSubstr(repository().string()),
                    HasSubstr("fetch it with: hf download acme/tiny")));
  auto location = LocateModel("acme/tiny", ModelNeed::kWeights, "");
  ASSERT_FALSE(location.ok());
  EXPECT_THAT(location.status().message(), HasSubstr("HF_HUB_CACHE"));
}

TEST_F(HubCache, IncompleteSnapshotNamesTheFirstMissingFiles) {
  AddRef("main", kCommit);
  fs::create_directories(snapshot());
  EXPECT_THAT(Failure("acme/tiny", ModelNeed::kConfig), HasSubstr("missing: config.json."));
  AddFile("config.json", "{}");
  EXPECT_TRUE(Locate("acme/tiny", ModelNeed::kConfig).ok());
  EXPECT_THAT(Failure("acme/tiny"), HasSubstr("missing: model.safetensors.index.json."));
  AddIndex(5);
  EXPECT_THAT(Failure("acme/tiny"),
              AllOf(HasSubstr("5 file(s) missing: model-00001-of-00005.safetensors, "
                              "model-00002-of-00005.safetensors, "
                              "model-00003-of-00005.safetensors and 2 more."),
                    HasSubstr("Complete it with: hf download acme/tiny")));
  for (int i = 1; i <= 5; ++i) {
    AddFile("model-0000" + std::to_string(i) + "-of-00005.safetensors", "x");
  }
  EXPECT_TRUE(Locate("acme/tiny").ok());
  // A link whose blob is gone, as after an interrupted download or a cleaned cache.
  fs::remove(repository() / "blobs" / "blob-model-00004-of-00005.safetensors");
  EXPECT_THAT(Failure("acme/tiny"),
              HasSubstr("1 file(s) missing: model-00004-of-00005.safetensors."));
}

TEST_F(HubCache, DamagedReferencesLeadNowhere) {
  AddFile("config.json", "{}");
  AddFile("model.safetensors", "x");
  for (const std::string text : {"", "../../..", "\n", "not a commit", "0123/../456"}) {
    AddRef("main", text);
    EXPECT_THAT(Failure("acme/tiny"), HasSubstr("\"main\" is not in")) << text;
  }
  AddRef("main", std::string(100'000, 'a'));
  EXPECT_THAT(Failure("acme/tiny"), HasSubstr("\"main\" is not in"));
  AddRef("main", "fedcba9876543210");
  EXPECT_THAT(Failure("acme/tiny"), HasSubstr("no " + (repository() / "snapshots").string()));
}

TEST_F(HubCache, NothingOutsideTheCacheIsReachedByAnId) {
  AddRef("main", kCommit);
  AddFile("config.json", "{}");
  AddFile("model.safetensors", "x");
  for (const std::string argument :
       {"acme/..", "../tiny", "acme/tiny@../main", "acme/tiny@", "acme/tiny@a//b", "/acme/tiny",
        "acme/tiny/more", "acme", "", "acme/", "acme/ti ny", "-acme/tiny"}) {
    EXPECT_THAT(Failure(argument), HasSubstr("no Hugging Face id")) << argument;
  }
  EXPECT_THAT(Failure(std::string("a\0b", 3)), HasSubstr("NUL"));
}

TEST(LocateModel, DirectoryIsTakenAsItIs) {
  for (const char* text : {"models/fathom-nano", "models/fathom-nano/"}) {
    auto location = LocateModel((SourceDir() / text).string(), ModelNeed::kWeights, "");
    ASSERT_TRUE(location.ok()) << location.status().ToString();
    EXPECT_EQ(location->name, "fathom-nano");
    EXPECT_TRUE(location->has_weights);
  }
  TempDirectory empty;
  auto location = LocateModel(empty.path().string(), ModelNeed::kConfig, "");
  ASSERT_FALSE(location.ok());
  EXPECT_THAT(location.status().message(), HasSubstr("has no config.json"));
  EXPECT_TRUE(LocateModel(empty.path().string(), ModelNeed::kDirectory, "").ok());
}

TEST(LocateModel, ConfigIsEnoughOnlyWhereNoWeightsAreNeeded) {
  const std::string path = (SourceDir() / "models/presets/flash.json").string();
  auto location = LocateModel(path, ModelNeed::kConfig, "");
  ASSERT_TRUE(location.ok()) << location.status().ToString();
  EXPECT_EQ(location->name, "flash.json");
  EXPECT_EQ(location->config, path);
  EXPECT_FALSE(location->has_weights);
  EXPECT_TRUE(location->directory.empty());
  for (const ModelNeed need : {ModelNeed::kWeights, ModelNeed::kDirectory}) {
    auto refused = LocateModel(path, need, "");
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(), HasSubstr("name the directory"));
  }
}

TEST(LocateModel, OtherFilesAreRefusedWithAHint) {
  TempDirectory directory;
  const std::pair<const char*, const char*> cases[] = {{"model.safetensors", "name its directory"},
                                                       {"model.gguf", "official layout"}};
  for (const auto& [name, hint] : cases) {
    WriteText(directory.path() / name, "x");
    auto location =
        LocateModel((directory.path() / name).string(), ModelNeed::kConfig, directory.path());
    ASSERT_FALSE(location.ok());
    EXPECT_THAT(location.status().message(), HasSubstr(hint));
  }
}

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~ScopedVariable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(HubCacheFromEnvironment, FollowsTheOrderOfTheHubLibrary) {
  const ScopedVariable home("HOME", "/h");
  const ScopedVariable xdg_unset("XDG_CACHE_HOME", nullptr);
  const ScopedVariable hf_home_unset("HF_HOME", nullptr);
  const ScopedVariable cache_unset("HF_HUB_CACHE", nullptr);
  EXPECT_EQ(HubCacheFromEnvironment(), "/h/.cache/huggingface/hub");
  const ScopedVariable xdg("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(HubCacheFromEnvironment(), "/x/huggingface/hub");
  const ScopedVariable hf_home("HF_HOME", "/f");
  EXPECT_EQ(HubCacheFromEnvironment(), "/f/hub");
  const ScopedVariable cache("HF_HUB_CACHE", "/c");
  EXPECT_EQ(HubCacheFromEnvironment(), "/c");
}

}  // namespace
}  // namespace fathom
