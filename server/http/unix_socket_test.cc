// Listening at the file of a Unix socket.
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/http/http_fixture.h"

namespace fathom::http {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class UnixSocket : public HttpServerTest {
 protected:
  UnixSocket() : path_(::testing::TempDir() + "fathom_" + std::to_string(getpid()) + ".sock") {
    fs::remove(path_);
    options_.unix_socket = path_;
  }
  ~UnixSocket() override { fs::remove(path_); }

  std::string StartError() {
    const auto server = HttpServer::Start(options_);
    EXPECT_FALSE(server.ok());
    return server.ok() ? "" : server.status().message();
  }

  const std::string path_;
};

TEST_F(UnixSocket, AnswersAndIsGoneAfterwards) {
  EXPECT_EQ(Start(), 0);
  EXPECT_EQ(server_->address(), path_);
  TestClient client(path_);
  EXPECT_EQ(client.Ask("GET", "/a").body, "GET /a ");
  EXPECT_EQ(client.Ask("POST", "/b", "x").body, "POST /b x");
  server_->Stop();
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(UnixSocket, TheUmaskDecidesWhoMayConnect) {
  const mode_t before = umask(0077);
  Start();
  umask(before);
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(UnixSocket, AFileThatNobodyListensAtIsTakenOver) {
  {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    close(fd);
  }
  ASSERT_TRUE(fs::exists(path_));
  Start();
  EXPECT_EQ(TestClient(path_).Ask("GET", "/a").status, 200);
}

TEST_F(UnixSocket, AnotherServersFileIsLeftAlone) {
  Start();
  EXPECT_THAT(StartError(), HasSubstr(path_ + ": another server does"));
  EXPECT_EQ(TestClient(path_).Ask("GET", "/a").status, 200);
  // As at a rolling restart: the successor has the file when this one ends.
  server_->Drain();
  while (TestClient(path_).connected()) std::this_thread::yield();
  auto successor = HttpServer::Start(options_);
  ASSERT_TRUE(successor.ok()) << successor.status().ToString();
  server_->Stop();
  EXPECT_EQ(TestClient(path_).Ask("GET", "/b").status, 200);
}

TEST_F(UnixSocket, OtherFilesAreLeftAlone) {
  std::ofstream(path_) << "precious";
  EXPECT_THAT(StartError(), HasSubstr("is no socket"));
  EXPECT_EQ(fs::file_size(path_), 8u);
}

TEST_F(UnixSocket, SaysWhatIsWrongWithAPath) {
  options_.unix_socket = "/tmp/" + std::string(200, 'x');
  EXPECT_THAT(StartError(), HasSubstr("longer than 107 bytes"));
  options_.unix_socket = ::testing::TempDir() + "no_such_directory/socket";
  EXPECT_THAT(StartError(), HasSubstr("No such file"));
}

}  // namespace
}  // namespace fathom::http
