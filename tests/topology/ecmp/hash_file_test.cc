// Hashes as text and in files.
#include "topology/ecmp/hash_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "topology/ecmp/hash_text.h"
#include "topology/fabric/load.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

TEST(HashText, IsReadBackAsWritten) {
  for (const char* text : {"linux:seed=1000", "linux:seed=7,policy=1,fields=0x37", "crc16:seed=3",
                           "linux:seed=7,policy=1,select=resilient,buckets=128",
                           "crc32c:seed=9,offset=5,select=threshold",
                           "xor16:seed=0,select=resilient,buckets=64,fields=0x13"}) {
    const SwitchHashOptions options = ParseHash(text)->options();
    const std::string written = HashText(options);
    const SwitchHashOptions again = ParseHash(written)->options();
    EXPECT_EQ(HashText(again), written) << text;
    EXPECT_EQ(again.seed, options.seed);
    EXPECT_EQ(again.offset, options.offset);
    EXPECT_EQ(again.select, options.select);
    EXPECT_EQ(again.linux_policy, options.linux_policy);
    if (options.select == HashSelect::kResilient) {
      EXPECT_EQ(again.buckets, options.buckets);
    }
  }
  EXPECT_EQ(ParseHash("linux:seed=1")->options().select, HashSelect::kThreshold);
}

TEST(HashText, KeepsTablesOfFlows) {
  for (const char* text : {"table:members=4,wrong=1e-06,10.1.0.1>10.1.1.1>4791>17=49200.2+49201.0,"
                           "10.1.0.2>10.1.1.1>4791>17=50000.3",
                           "table:members=3,wrong=0,fd01::1>fd01::1:1>4791>17=49200.2"}) {
    const SwitchHash hash = *ParseHash(text);
    EXPECT_EQ(HashText(hash.options()), text);
  }
  const SwitchHash hash = *ParseHash("table:members=4,10.1.0.1>10.1.1.1>4791>17=49200.2");
  FiveTuple tuple{
      *IpAddress::Parse("10.1.0.1"), *IpAddress::Parse("10.1.1.1"), 49200, 4791, kProtocolUdp, 0};
  EXPECT_TRUE(hash.Knows(tuple, 4));
  EXPECT_EQ(hash.Select(tuple, 4), 2u);
  EXPECT_FALSE(hash.Knows(tuple, 3));  // a next hop has gone
  tuple.source_port = 49201;
  EXPECT_FALSE(hash.Knows(tuple, 4));
  EXPECT_LT(hash.Select(tuple, 4), 4u);
}

TEST(HashText, NamesWhatIsWrong) {
  const auto message = [](const char* text) {
    return std::string(ParseHash(text).status().message());
  };
  EXPECT_THAT(message("linux"), HasSubstr("seed 0 means one that the router drew at boot"));
  EXPECT_THAT(message("linux:sed=1"), HasSubstr("there is no \"sed\""));
  EXPECT_THAT(message("crc16:seed=x"), HasSubstr("seed is \"x\", not a number"));
  EXPECT_THAT(message("crc16:select=first"), HasSubstr("not modulo, threshold or resilient"));
  EXPECT_THAT(message("crc99:seed=1"), HasSubstr("no hash function of a switch"));
  EXPECT_THAT(message("table:members=4,10.1.0.1>10.1.1.1>4791>17=49200.4"),
              HasSubstr("\"49200.4\" is wrong; right is PORT.MEMBER, with a member below 4"));
  EXPECT_THAT(message("table:members=4,10.1.0.1>4791=49200.1"), HasSubstr("right is 10.1.0.1>10."));
  EXPECT_THAT(message("table:members=4,10.1.0.1>10.1.1.1>4791>273=49200.1"),
              HasSubstr("numbers of ports and of the protocol"));
  EXPECT_THAT(message("linear:bits=2,origin=10.1.0.1>10.1.1.1>1>2>17,00=1"),
              HasSubstr("12 hexadecimal bytes"));
  // What bounds rows, and what they are of, stands before them and once.
  EXPECT_THAT(message("table:members=4,10.1.0.1>10.1.1.1>4791>17=49200.3,members=2"),
              HasSubstr("\"members=2\" is wrong; right is members=4, once"));
  const std::string linear =
      "linear:bits=4,origin=10.1.0.1>10.1.1.1>1>2>17,000000010000000000000000=15";
  EXPECT_TRUE(ParseHash(linear).ok()) << ParseHash(linear).status();
  EXPECT_THAT(message((linear + ",bits=1").c_str()),
              HasSubstr("\"bits=1\" is wrong; right is bits=2, once"));
  EXPECT_THAT(message((linear + ",origin=fd01::1>fd01::2>1>2>17").c_str()),
              HasSubstr("right is one origin=, before all rows"));
}

constexpr char kFile[] =
    "weft-hashes 1\naddress h0 0 10.1.0.1\naddress h1 0 10.1.1.1\nhash * linux:seed=5\n"
    "hash leaf1 linux:seed=6  # another\norder leaf0 spine1 spine0\n";

TEST(HashFile, GivesEachSwitchItsHashAndOrder) {
  Fabric fabric = *LoadFabric("leaf-spine:leaves=2,hosts_per_leaf=1,spines=2");
  HashFile file = *ParseHashFile(kFile, "file");
  EXPECT_EQ(HashFileText(*ParseHashFile(HashFileText(file), "again")), HashFileText(file));
  FabricHashes hashes = *MakeHashes(fabric, file, "file");
  Routes routes(fabric);
  const Endpoint h0{fabric.hosts()[0], 0}, h1{fabric.hosts()[1], 0};
  EXPECT_EQ(hashes.address(h1).ToString(), "10.1.1.1");
  const SwitchHash five = *ParseHash("linux:seed=5"), six = *ParseHash("linux:seed=6");
  for (uint16_t port = 50000; port < 50100; ++port) {
    const FiveTuple there = hashes.Tuple(h0, h1, port, 4791, kProtocolUdp);
    const FiveTuple back = hashes.Tuple(h1, h0, port, 4791, kProtocolUdp);
    const auto up = *hashes.Path(routes, h0, h1, there);
    EXPECT_EQ(fabric.node(fabric.link(up[1]).target).name,
              five.Select(there, 2) == 0 ? "spine1" : "spine0");
    const auto choices = hashes.Choices(routes, h0, h1, up);
    ASSERT_EQ(choices.size(), 1u);
    EXPECT_EQ(choices[0].index, five.Select(there, 2));
    const auto down = *hashes.Path(routes, h1, h0, back);
    EXPECT_EQ(fabric.node(fabric.link(down[1]).target).name,
              six.Select(back, 2) == 0 ? "spine0" : "spine1");
  }
}

// As a router numbers them that has one cable of each neighbour before the second of any.
TEST(HashFile, AnOrderMayNameANeighbourOnceForEachCable) {
  Fabric fabric = *LoadFabric("leaf-spine:leaves=2,hosts_per_leaf=1,spines=2,spine_cables=2");
  const Routes routes(fabric);
  const Endpoint h0{fabric.hosts()[0], 0}, h1{fabric.hosts()[1], 0};
  const std::string head = "weft-hashes 1\nhash * linux:seed=5\norder leaf0 ";
  for (const bool alternates : {true, false}) {
    const char* order = alternates ? "spine1 spine0 spine1 spine0\n" : "spine1 spine0\n";
    const FabricHashes hashes = *MakeHashes(fabric, *ParseHashFile(head + order, "file"), "file");
    std::set<LinkId> met;
    for (uint16_t port = 50000; port < 50100; ++port) {
      const FiveTuple tuple = hashes.Tuple(h0, h1, port, 4791, kProtocolUdp);
      const auto path = *hashes.Path(routes, h0, h1, tuple);
      const size_t index = ParseHash("linux:seed=5")->Select(tuple, 4);
      const bool is_first = alternates ? index % 2 == 0 : index < 2;
      EXPECT_EQ(fabric.node(fabric.link(path[1]).target).name, is_first ? "spine1" : "spine0");
      EXPECT_EQ(hashes.Choices(routes, h0, h1, path)[0].index, index);
      met.insert(path[1]);
    }
    EXPECT_EQ(met.size(), 4u);
  }
}

TEST(HashFile, RefusesAnotherFabricByName) {
  const auto message = [](const std::string& fabric, const std::string& more) {
    Fabric built = *LoadFabric(fabric);
    return std::string(
        MakeHashes(built, *ParseHashFile(kFile + more, "file"), "file").status().message());
  };
  EXPECT_THAT(message("leaf-spine:leaves=2,hosts_per_leaf=1,spines=2", "hash leaf7 crc32:seed=1\n"),
              HasSubstr("file is of another fabric: "));
  EXPECT_THAT(message("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2", ""),
              HasSubstr("file has no address of NIC 0 of h2"));
  EXPECT_THAT(message("leaf-spine:leaves=2,hosts_per_leaf=2,spines=2",
                      "address h2 0 10.1.0.1\naddress h3 0 10.1.0.2\n"),
              HasSubstr("file gives NIC 0 of h0 and NIC 0 of h2 one address, 10.1.0.1"));
  EXPECT_THAT(std::string(ParseHashFile("hash leaf0 crc32:seed=1\n", "file").status().message()),
              HasSubstr("file:1: a file of hashes begins with \"weft-hashes 1\""));
}

}  // namespace
}  // namespace weft::topology
