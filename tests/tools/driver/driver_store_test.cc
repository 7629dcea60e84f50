#include "tools/driver/driver_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sodium.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "net/secret.h"
#include "tests/tools/driver/etcd_member.h"

namespace weft::driver {
namespace {

// What etcd answers where `key` has `value`, written with this secret.
std::string Answer(const net::JobSecret& secret, const std::string& key, const std::string& value) {
  const std::string text = absl::StrCat(key, "\n", value);
  std::array<unsigned char, crypto_auth_BYTES> mac;
  crypto_auth(mac.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
              reinterpret_cast<const unsigned char*>(secret.data()));
  const std::string sealed = absl::StrCat(
      absl::BytesToHexString({reinterpret_cast<const char*>(mac.data()), mac.size()}), "\n", value);
  return absl::StrCat("HTTP/1.1 200 OK\r\n\r\n{\"kvs\": [{\"value\": \"",
                      absl::Base64Escape(sealed), "\", \"mod_revision\": \"1\"}]}");
}

// Connecting fails at once. Unless there is a pause between two tries, all answers are used up.
TEST(DriverStoreTest, AnEtcdIsNotFloodedWhileTheStoreThatItNamesCannotBeReached) {
  const net::JobSecret secret = net::NewJobSecret();
  ASSERT_EQ(setenv("WEFT_JOB_SECRET", net::SecretToHex(secret).c_str(), 1), 0);
  constexpr int kAnswers = 50;
  const Member member(
      std::vector<std::string>(kAnswers, Answer(secret, "weft/job/address", "nowhere")));
  ExecutorOptions options;
  options.etcd = absl::StrCat("etcd://", member.address(), "/weft");
  options.host = "a";
  options.run.job = "job";
  options.join_patience = absl::Seconds(1);
  const auto store = DriverStore::Connect(options);
  EXPECT_TRUE(absl::IsInvalidArgument(store.status())) << store.status();
  EXPECT_GE(member.answered(), 1);
  EXPECT_LT(member.answered(), kAnswers / 2);
}

TEST(DriverStoreTest, WithoutAJobsSecretItSaysHowToMakeOne) {
  ASSERT_EQ(unsetenv("WEFT_JOB_SECRET"), 0);
  const auto store = DriverStore::Connect(ExecutorOptions{});
  EXPECT_TRUE(absl::IsInvalidArgument(store.status()));
  EXPECT_THAT(std::string(store.status().message()), testing::HasSubstr("openssl rand -hex 32"));
}

}  // namespace
}  // namespace weft::driver
