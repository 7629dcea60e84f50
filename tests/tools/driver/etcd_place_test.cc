// How a place in etcd is written; what is done there, etcd_test.py tests with a real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/tools/driver/etcd_member.h"
#include "tools/driver/etcd.h"

namespace weft::driver {
namespace {

TEST(EtcdPlaceTest, NamesMembersAndAPrefix) {
  const auto place = ParseEtcdPlace("etcd://10.0.0.1:2379,etcd-1.site:2380,[::1]:7/jobs/weft/");
  ASSERT_TRUE(place.ok()) << place.status();
  ASSERT_EQ(place->members.size(), 3U);
  EXPECT_EQ(place->members[1].host, "etcd-1.site");
  EXPECT_EQ(place->members[1].port, "2380");
  EXPECT_EQ(place->members[2].host, "::1");
  EXPECT_EQ(place->prefix, "jobs/weft");
  const Etcd etcd(*place, "job", net::JobSecret{}, absl::ZeroDuration());
  EXPECT_EQ(etcd.KeyOf("state"), "jobs/weft/job/state");
}

TEST(EtcdPlaceTest, WhatIsNoneIsRefusedWithWhatIsRight) {
  for (const char* text :
       {"", "etcd://", "http://a:1/x", "etcd://a:2379", "etcd://a:2379/", "etcd://a/x",
        "etcd://:2379/x", "etcd://a:2379,/x", "etcd://a:70000/x"}) {
    const auto place = ParseEtcdPlace(text);
    EXPECT_TRUE(absl::IsInvalidArgument(place.status())) << text;
    EXPECT_THAT(std::string(place.status().message()),
                testing::HasSubstr("right is etcd://10.0.0.1:2379,10.0.0.2:2379/weft"));
  }
}

// Nobody listens at port 1 of this host.
TEST(EtcdTest, NamesWhatDoesNotAnswerOnceItsPatienceIsOver) {
  const Etcd etcd(*ParseEtcdPlace("etcd://127.0.0.1:1/weft"), "job", net::JobSecret{},
                  absl::Milliseconds(60));
  const auto held = etcd.Read(kEtcdState);
  EXPECT_TRUE(absl::IsUnavailable(held.status()));
  EXPECT_THAT(std::string(held.status().message()),
              testing::AllOf(testing::HasSubstr("no member of etcd has answered for 60ms"),
                             testing::HasSubstr("127.0.0.1:1")));
}

Etcd EtcdAt(const Member& member) {
  return Etcd(*ParseEtcdPlace(absl::StrCat("etcd://", member.address(), "/weft")), "job",
              net::JobSecret{}, absl::Minutes(1));
}

// "etcdserver: too many requests", and "mvcc: database space exceeded" until somebody makes room.
TEST(EtcdTest, AsksAMemberAgainThatHasNoTimeOrNoRoomNow) {
  Member member({"HTTP/1.1 429 Too Many Requests\r\n\r\n{}",
                 "HTTP/1.1 408 Request Timeout\r\n\r\n{}", "HTTP/1.1 200 OK\r\n\r\n{}"});
  const auto held = EtcdAt(member).Read(kEtcdState);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_EQ(held->revision, 0);
  EXPECT_EQ(member.answered(), 3);
}

TEST(EtcdTest, AsksForNothingAgainThatIsRefused) {
  Member member({"HTTP/1.1 400 Bad Request\r\n\r\n{}", "HTTP/1.1 200 OK\r\n\r\n{}"});
  EXPECT_TRUE(absl::IsInternal(EtcdAt(member).Read(kEtcdState).status()));
  EXPECT_EQ(member.answered(), 1);
}

}  // namespace
}  // namespace weft::driver
