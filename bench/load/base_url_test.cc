#include "bench/load/base_url.h"

#include <gtest/gtest.h>

namespace fathom::load {
namespace {

TEST(BaseUrl, ReadsWhatPeopleWrite) {
  struct Case {
    const char *url, *host, *port, *path, *authority;
  };
  for (const Case& c : {Case{"http://127.0.0.1:8000", "127.0.0.1", "8000", "", "127.0.0.1:8000"},
                        Case{"http://localhost", "localhost", "80", "", "localhost:80"},
                        Case{"HTTP://a.example:1/", "a.example", "1", "", "a.example:1"},
                        Case{"http://h:8000/v1", "h", "8000", "", "h:8000"},
                        Case{"http://h:8000/v1/", "h", "8000", "", "h:8000"},
                        Case{"http://h:8000/proxy/v1", "h", "8000", "/proxy", "h:8000"},
                        Case{"http://[::1]:65535/x//", "::1", "65535", "/x", "[::1]:65535"},
                        Case{"http://[::1]", "::1", "80", "", "[::1]:80"}}) {
    const auto base = ParseBaseUrl(c.url);
    ASSERT_TRUE(base.ok()) << base.status().ToString();
    EXPECT_EQ(base->host, c.host);
    EXPECT_EQ(base->port, c.port);
    EXPECT_EQ(base->path, c.path);
    EXPECT_EQ(base->Authority(), c.authority);
  }
}

TEST(BaseUrl, RefusesWhatItCannotReach) {
  for (const char* url :
       {"", "127.0.0.1:8000", "ftp://h", "http://", "http://:80", "http:///v1",
        "http://h:", "http://h:0", "http://h:65536", "http://h:80x",
        "http://h:99999999999999999999", "http://[::1", "http://[]:1", "http://[::1]8",
        "http://a b", "http://h\r\nX: y", "http://h/?a=b", "http://u@h"}) {
    const auto base = ParseBaseUrl(url);
    EXPECT_FALSE(base.ok()) << url;
    if (!base.ok()) {
      EXPECT_EQ(base.status().code(), StatusCode::kInvalidArgument) << url;
    }
  }
  EXPECT_EQ(ParseBaseUrl("https://h").status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace fathom::load
