// Hosts of a fabric by name.
#include "topology/order/find_hosts.h"

#include <gmock/gmock.h>

#include "topology/fabric/clos.h"

namespace weft::topology {
namespace {

using ::testing::HasSubstr;

TEST(FindHosts, NamesWhatTheFabricLacks) {
  ClosSpec spec;
  Fabric fabric = *BuildClos(spec);
  EXPECT_EQ(FindHosts(fabric, {"h3", "h1"})->front(), NodeId(3));
  EXPECT_THAT(FindHosts(fabric, {"h3", "h9999"}).status().ToString(), HasSubstr("h9999"));
  EXPECT_THAT(FindHosts(fabric, {"leaf0"}).status().ToString(), HasSubstr("is a switch"));
  EXPECT_THAT(FindHosts(fabric, {"h3", "h3"}).status().ToString(), HasSubstr("named twice"));
}

}  // namespace
}  // namespace weft::topology
