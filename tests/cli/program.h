// Runs the `fathom` program as a user would: arguments, pipes or a terminal, signals.
//
// Waits end by what the program does, or after a minute with a failed test; nothing sleeps.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/test_data.h"

namespace fathom::cli_test {

struct Outcome {
  int status = 0;  // exit status; minus the signal that ended it
  std::string out;
  std::string err;  // empty on a terminal, which shows both as `out`
  // Most memory that it ever held; at least what the test held when it was started.
  int64_t peak_bytes = 0;
};

enum class Io { kPipes, kTerminal };

class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, Io io = Io::kPipes);
  ~Program();  // kills what still runs
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void Write(std::string_view text);
  void CloseInput();
  // Closes the reading end of its standard output.
  void CloseOutput();
  // Until `text` stands in the output after what the last call of this function found.
  [[nodiscard]] bool WaitForOutput(std::string_view text);
  [[nodiscard]] bool WaitForError(std::string_view text);
  void Signal(int signal);
  // What it has written to standard output so far.
  [[nodiscard]] const std::string& output() const { return outcome_.out; }
  // Closes its input, reads to the end and waits for it.
  Outcome Finish();

 private:
  bool WaitFor(std::string_view text, const std::string& stream, size_t& seen);
  // Reads something from either stream; false at the end of both or when time is up.
  bool ReadSome();

  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
  Outcome outcome_;
  size_t out_seen_ = 0;
  size_t err_seen_ = 0;
};

// Start to end, with `input` as standard input.
Outcome RunFathom(const std::vector<std::string>& arguments, std::string_view input = {});

// An empty folder that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Writes a file in it and returns its path.
  [[nodiscard]] std::string Write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

std::string ReadFile(const std::filesystem::path& path);

}  // namespace fathom::cli_test
