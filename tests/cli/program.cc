#include "tests/cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

namespace fathom::cli_test {
namespace {

constexpr const char* kProgram = FATHOM_BINARY_DIR "/fathom";
constexpr int kPatienceMs = 60'000;

void Close(int& fd) {
  if (fd >= 0) close(std::exchange(fd, -1));
}

std::array<int, 2> MakePipe() {
  std::array<int, 2> ends{-1, -1};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
  return ends;
}

// What the tester's shell says must not change what is tested. Before any test, so that tests can
// set variables of their own.
const bool kEnvironmentIsClean = [] {
  std::vector<std::string> names = {"NO_COLOR", "OMP_NUM_THREADS"};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string name(*entry, std::strcspn(*entry, "="));
    const bool option = name.rfind("FATHOM_", 0) == 0 && name != "FATHOM_TEST_DATA";
    if (option || name.rfind("VLLM_", 0) == 0) names.push_back(name);
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  return true;
}();

[[noreturn]] void Execute(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(kProgram)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(kProgram, argv.data());
  _exit(127);
}

}  // namespace

Program::Program(const std::vector<std::string>& arguments, Io io) {
  std::signal(SIGPIPE, SIG_IGN);
  if (io == Io::kTerminal) {
    pid_ = forkpty(&out_, nullptr, nullptr, nullptr);
    if (pid_ == 0) Execute(arguments);
    EXPECT_GE(pid_, 0) << "forkpty failed";
    in_ = dup(out_);
    return;
  }
  const auto in = MakePipe(), out = MakePipe(), err = MakePipe();
  pid_ = fork();
  if (pid_ == 0) {
    std::signal(SIGPIPE, SIG_DFL);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    Execute(arguments);
  }
  EXPECT_GE(pid_, 0) << "fork failed";
  for (int fd : {in[0], out[1], err[1]}) close(fd);
  in_ = in[1];
  out_ = out[0];
  err_ = err[0];
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int* fd : {&in_, &out_, &err_}) Close(*fd);
}

void Program::Write(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(in_, text.data(), text.size());
    if (n < 0) return;  // it ended without reading; the test sees that in its output
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void Program::CloseInput() { Close(in_); }
void Program::CloseOutput() { Close(out_); }
void Program::Signal(int signal) { kill(pid_, signal); }

bool Program::ReadSome() {
  std::array<pollfd, 2> fds = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  if (poll(fds.data(), fds.size(), kPatienceMs) <= 0) {
    ADD_FAILURE() << "nothing came for a minute; so far:\n" << outcome_.out << outcome_.err;
    return false;
  }
  const auto take = [](const pollfd& ready, int& fd, std::string& text) {
    if (fd < 0 || ready.revents == 0) return;
    char part[4096];
    const ssize_t n = read(fd, part, sizeof(part));
    if (n > 0) {
      text.append(part, static_cast<size_t>(n));
    } else {
      Close(fd);  // a terminal ends with EIO
    }
  };
  take(fds[0], out_, outcome_.out);
  take(fds[1], err_, outcome_.err);
  return true;
}

bool Program::WaitFor(std::string_view text, const std::string& stream, size_t& seen) {
  while (true) {
    if (const size_t at = stream.find(text, seen); at != std::string::npos) {
      seen = at + text.size();
      return true;
    }
    if (!ReadSome()) return false;
  }
}

bool Program::WaitForOutput(std::string_view text) {
  return WaitFor(text, outcome_.out, out_seen_);
}
bool Program::WaitForError(std::string_view text) { return WaitFor(text, outcome_.err, err_seen_); }

Outcome Program::Finish() {
  CloseInput();
  while (ReadSome()) {
  }
  if (out_ >= 0 || err_ >= 0) kill(pid_, SIGKILL);  // time was up
  int status = 0;
  rusage usage{};
  wait4(std::exchange(pid_, -1), &status, 0, &usage);
  outcome_.peak_bytes = int64_t{usage.ru_maxrss} * 1024;
  outcome_.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return outcome_;
}

Outcome RunFathom(const std::vector<std::string>& arguments, std::string_view input) {
  Program program(arguments);
  program.Write(input);
  return program.Finish();
}

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "fathom_cli_XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}
TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string TempFolder::Write(const std::string& name, std::string_view content) const {
  const std::filesystem::path file = path_ / name;
  std::ofstream(file, std::ios::binary) << content;
  return file.string();
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace fathom::cli_test
