// fathom chat over a pipe and on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/cli/program.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kPrompt = "\n> ";
// So hot that the end token is one in thousands: an answer that lasts until something stops it.
const std::vector<std::string> kEndless = {"chat", "--temperature", "1000", "--seed", "1",
                                           "-n",   "1000000"};

TEST(Chat, RemembersTheConversationUntilItIsCleared) {
  const Outcome outcome =
      RunFathom({"chat", "--temperature", "0"},
                "My name is Zoe.\nWhat is my name?\n/clear\nWhat is my name?\n");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const size_t cleared = outcome.out.find("(new conversation)");
  ASSERT_NE(cleared, std::string::npos) << outcome.out;
  EXPECT_THAT(outcome.out.substr(0, cleared), HasSubstr("Your name is Zoe."));
  EXPECT_THAT(outcome.out.substr(cleared), Not(HasSubstr("Zoe")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\033"))) << "no styles in a pipe";
}

TEST(Chat, CommandsChangeTheConversation) {
  const Outcome outcome =
      RunFathom({"chat", "--temperature", "0"},
                "/thinking high\nWhat is 17*19? Return only the final integer.\n"
                "/thinking hard\n/nonsense\n/help\n/exit\nHello!\n");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, HasSubstr("(thinking: high)"));
  EXPECT_THAT(outcome.out, HasSubstr("I need to compute"));
  EXPECT_THAT(outcome.out, HasSubstr("\n\n323\n"));
  EXPECT_THAT(outcome.out, HasSubstr("Not a command: /thinking hard"));
  EXPECT_THAT(outcome.out, HasSubstr("Not a command: /nonsense"));
  EXPECT_THAT(outcome.out, HasSubstr("/system TEXT"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("Hello"))) << "/exit leaves";
}

TEST(Chat, ReasoningCanBeHidden) {
  const Outcome outcome =
      RunFathom({"chat", "--temperature", "0", "--thinking", "high", "--hide-reasoning"},
                "What is 17*19? Return only the final integer.\n");
  EXPECT_THAT(outcome.out, HasSubstr("> 323\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("compute")));
}

TEST(Chat, BadInputSpoilsOneTurnOnly) {
  const Outcome outcome = RunFathom({"chat", "--temperature", "0", "--max-model-len", "64"},
                                    "\xff\n\n" + std::string(500, 'x') + "\nHello!");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("UTF-8"));
  EXPECT_THAT(outcome.err, HasSubstr("context of 64 tokens"));
  EXPECT_THAT(outcome.out, HasSubstr("Hello! I am fathom-nano."));
}

TEST(Chat, TheNameIsThatOfTheDirectoryHoweverItIsWritten) {
  const std::string model = ProjectPath("models/fathom-nano").string();
  EXPECT_THAT(RunFathom({"chat", "--model", model + "/"}).out, HasSubstr("Chat with fathom-nano."));
  EXPECT_THAT(RunFathom({"chat", "--model", model + "/."}).out,
              HasSubstr("Chat with fathom-nano."));
}

TEST(ChatOnATerminal, DimsReasoningAndLeavesOnCtrlD) {
  Program program({"chat", "--temperature", "0"}, Io::kTerminal);
  ASSERT_TRUE(program.WaitForOutput(kPrompt));
  program.Write("/thinking high\n");
  ASSERT_TRUE(program.WaitForOutput("(thinking: high)"));
  ASSERT_TRUE(program.WaitForOutput(kPrompt));
  program.Write("What is 17*19? Return only the final integer.\n");
  ASSERT_TRUE(program.WaitForOutput("\033[2mI need to compute"));
  ASSERT_TRUE(program.WaitForOutput("\033[0m\r\n\r\n323"));
  ASSERT_TRUE(program.WaitForOutput(kPrompt));
  program.Write(kCtrlD);
  EXPECT_EQ(program.Finish().status, 0);
}

TEST(ChatOnATerminal, CtrlCStopsTheAnswerButNotTheProgram) {
  Program program(kEndless, Io::kTerminal);
  ASSERT_TRUE(program.WaitForOutput(kPrompt));
  for (int round = 0; round < 3; ++round) {
    program.Write("Hello\n");
    ASSERT_TRUE(program.WaitForOutput("Hello\r\n"));
    ASSERT_TRUE(program.WaitForOutput(" "));  // of the answer
    program.Write(kCtrlC);
    ASSERT_TRUE(program.WaitForOutput("(stopped)"));
    ASSERT_TRUE(program.WaitForOutput(kPrompt));
  }
  // With nothing to stop it throws the line away.
  program.Write("half a line");
  ASSERT_TRUE(program.WaitForOutput("half a line"));
  program.Write(kCtrlC);
  ASSERT_TRUE(program.WaitForOutput(kPrompt));
  program.Write(kCtrlD);
  EXPECT_EQ(program.Finish().status, 0);
}

TEST(Chat, AReaderThatLeavesEndsIt) {
  Program program(kEndless);
  ASSERT_TRUE(program.WaitForOutput(kPrompt));
  program.Write("Hello\n");
  ASSERT_TRUE(program.WaitForOutput(" "));
  program.CloseOutput();
  EXPECT_EQ(program.Finish().status, 1);
}

}  // namespace
}  // namespace fathom::cli_test
