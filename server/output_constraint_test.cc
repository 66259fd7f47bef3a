#include "server/output_constraint.h"

#include <gmock/gmock.h>

#include "chat/json_parse.h"
#include "server/api_server_fixture.h"

namespace fathom {
namespace {

constexpr TokenId kEnd = 1;

class ConstraintFactoryTest : public ::testing::Test {
 protected:
  ConstraintFactoryTest() : front_end_(LoadNanoTokenizer(), {}), factory_(&front_end_, {kEnd}) {}

  static ConstraintFields Regex(std::string text) {
    ConstraintFields fields;
    fields.kind = ConstraintFields::Kind::kRegex;
    fields.param = "structured_outputs.regex";
    fields.text = std::move(text);
    return fields;
  }
  static ChatPrompt WithTools(std::vector<std::string> functions) {
    ChatPrompt chat;
    for (const std::string& function : functions) {
      chat.parser.tools.push_back(*ParseJson(function));
    }
    return chat;
  }
  // The shortest text that the constraint allows.
  std::string Shortest(const ConstraintFields& fields, const ChatPrompt* chat) {
    NewConstraint make;
    const MaybeError error = factory_.Prepare(fields, chat, &make);
    if (error) return "error: " + error->message;
    if (!make) return "free";
    const auto constraint = make();
    std::vector<TokenId> ids;
    std::vector<uint64_t> allowed(64);
    while (ids.size() < 200) {
      std::fill(allowed.begin(), allowed.end(), ~uint64_t{0});
      constraint->Restrict(allowed);
      const TokenId token = constraint->Suggest();
      constraint->Accept(token);
      if (token == kEnd) break;
      ids.push_back(token);
    }
    return front_end_.Decode(ids, /*skip_special_tokens=*/false);
  }

  const TextFrontEnd front_end_;
  ConstraintFactory factory_;
};

// Compiled grammars are kept for later requests; a request must not get that of another, whatever
// its texts spell.
TEST_F(ConstraintFactoryTest, GrammarsAreKeptByAllThatTheyDependOn) {
  const std::string tool = R"({"name": "f"})";
  const ChatPrompt with_tool = WithTools({tool});
  const ChatPrompt with_other = WithTools({R"({"name": "g"})"});
  const ChatPrompt without;
  EXPECT_EQ(Shortest(Regex("a"), &without), "a");
  EXPECT_EQ(Shortest(Regex("b"), &without), "b");
  ConstraintFields choice;
  choice.kind = ConstraintFields::Kind::kChoice;
  choice.choices = {"a b"};
  EXPECT_EQ(Shortest(choice, &without), "a b");
  choice.choices = {"a", "b c"};
  EXPECT_EQ(Shortest(choice, &without), "a");
  ChatPrompt forced = with_tool;
  forced.tool_choice = ToolChoice::kRequired;
  EXPECT_THAT(Shortest({}, &forced), ::testing::HasSubstr("invoke name=\"f\""));
  forced = with_other;
  forced.tool_choice = ToolChoice::kRequired;
  EXPECT_THAT(Shortest({}, &forced), ::testing::HasSubstr("invoke name=\"g\""));
}

TEST_F(ConstraintFactoryTest, NoTextSpellsTheKeyOfAnothersGrammar) {
  const std::string tool = R"({"name": "f"})";
  const ChatPrompt with_tool = WithTools({tool});
  const ChatPrompt without;
  // What the parts of a key look like when they stand behind each other, in several ways.
  for (const std::string& tail :
       {"tools |\n" + tool, "tools|\n" + tool, "tools1:|13:" + tool, "6:tools1:|13:" + tool}) {
    (void)Shortest(Regex("a" + tail), &without);
    EXPECT_EQ(Shortest(Regex("a"), &with_tool), "a") << tail;
  }
}

TEST_F(ConstraintFactoryTest, NothingIsConstrainedThatNobodyAskedFor) {
  const ChatPrompt without;
  EXPECT_EQ(Shortest({}, &without), "free");
  EXPECT_EQ(Shortest({}, nullptr), "free");
  ChatPrompt none = WithTools({R"({"name": "f", "strict": true})"});
  none.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(Shortest({}, &none), "free");
}

}  // namespace
}  // namespace fathom
