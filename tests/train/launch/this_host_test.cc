#include "train/launch/this_host.h"

#include <gtest/gtest.h>

namespace penstock::train {
namespace {

TEST(ThisHost, IsMeantByItsNameWithAndWithoutTheDomain) {
  for (const char* name : {"node1", "node1.cluster", "NODE1.Cluster"}) {
    EXPECT_TRUE(IsThisHost(name, "node1.cluster")) << name;
  }
  for (const char* name : {"node10", "node", "node1.other", "cluster", "node1.cluster.org"}) {
    EXPECT_FALSE(IsThisHost(name, "node1.cluster")) << name;
  }
  EXPECT_TRUE(IsThisHost("node1.cluster", "node1"));
  EXPECT_TRUE(IsThisHost(OwnHostName(), OwnHostName()));
}

TEST(ThisHost, IsMeantByEveryLoopback) {
  for (const char* host : {"localhost", "LOCALHOST", "127.0.0.1", "127.8.9.10", "::1"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
    EXPECT_TRUE(IsThisHost(host, "x")) << host;
  }
  for (const char* host : {"localhost.example", "128.0.0.1", "127", "127.0.0.1.com", "::2", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace penstock::train
