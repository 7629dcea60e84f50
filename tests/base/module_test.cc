#include "base/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::HasSubstr;

TEST(LoadModule, WhatIsNotThereIsNamedWithTheHint) {
  auto handle = LoadModule("libweft-nowhere.so", "It is built by magic");
  ASSERT_FALSE(handle.ok());
  EXPECT_TRUE(absl::IsUnavailable(handle.status())) << handle.status();
  EXPECT_THAT(std::string(handle.status().message()), HasSubstr("libweft-nowhere.so"));
  EXPECT_THAT(std::string(handle.status().message()), HasSubstr("It is built by magic"));
}

TEST(LoadModule, APathIsTakenAsItIs) {
  auto handle = LoadModule("libweft-nowhere.so", "", "/nowhere/else.so");
  ASSERT_FALSE(handle.ok());
  EXPECT_THAT(std::string(handle.status().message()), HasSubstr("/nowhere/else.so"));
}

TEST(LoadModule, TheLinkersOwnPathsCount) {
  auto handle = LoadModule("libc.so.6", "");
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_NE(*handle, nullptr);
}

}  // namespace
}  // namespace weft
