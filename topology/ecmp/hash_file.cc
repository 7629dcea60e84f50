#include "topology/ecmp/hash_file.h"

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/ecmp/hash_text.h"

namespace weft::topology {
namespace {

constexpr absl::string_view kMagic = "weft-hashes";

absl::Status TakeLine(absl::Span<const absl::string_view> words, HashFile& file) {
  const std::string name(words.size() > 1 ? words[1] : "");
  if (words[0] == "address" && words.size() == 4) {
    int nic = -1;
    if (!absl::SimpleAtoi(words[2], &nic) || nic < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", words[2], "\" is no number of a NIC"));
    }
    WEFT_ASSIGN_OR_RETURN(IpAddress address, IpAddress::Parse(words[3]));
    file.addresses[{name, nic}] = address;
    return absl::OkStatus();
  }
  if (words[0] == "hash" && words.size() == 3) {
    WEFT_ASSIGN_OR_RETURN(SwitchHash hash, ParseHash(words[2]));
    file.hashes.insert_or_assign(name, hash);
    return absl::OkStatus();
  }
  if (words[0] == "unknown" && words.size() == 2) {
    file.unknown.insert(name);
    return absl::OkStatus();
  }
  if (words[0] == "router" && words.size() == 3) {
    file.routers[name] = std::string(words[2]);
    return absl::OkStatus();
  }
  if (words[0] == "order" && words.size() > 2) {
    std::vector<std::string>& order = file.orders[name];
    order.clear();
    for (absl::string_view word : words.subspan(2)) order.emplace_back(word);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::StrJoin(words, " "),
      "\" is no line of such a file; right are \"address h0 0 10.1.0.1\", \"hash leaf0 "
      "linux:seed=1000\" and \"order leaf0 spine1 spine0\""));
}

absl::Status Foreign(absl::string_view origin, const absl::Status& why) {
  return absl::FailedPreconditionError(
      absl::StrCat(origin, " is of another fabric: ", why.message()));
}

absl::Status SetAddresses(const Fabric& fabric, const HashFile& file, absl::string_view origin,
                          FabricHashes& hashes) {
  std::map<IpAddress, std::pair<std::string, int>> owners;
  for (const auto& [nic, address] : file.addresses) {
    const auto [owner, is_new] = owners.emplace(address, nic);
    if (!is_new) {
      const auto& [name, number] = owner->second;
      return absl::FailedPreconditionError(absl::StrCat(origin, " gives NIC ", number, " of ", name,
                                                        " and NIC ", nic.second, " of ", nic.first,
                                                        " one address, ", address.ToString()));
    }
    absl::StatusOr<NodeId> host = fabric.Find(nic.first);
    if (!host.ok()) return Foreign(origin, host.status());
    if (fabric.Ports({*host, nic.second}).empty()) {
      return Foreign(origin,
                     absl::NotFoundError(absl::StrCat(nic.first, " has no NIC ", nic.second)));
    }
    hashes.SetAddress({*host, nic.second}, address);
  }
  if (file.addresses.empty()) return absl::OkStatus();
  for (Endpoint endpoint : fabric.Endpoints()) {
    const std::string& name = fabric.node(endpoint.host).name;
    if (file.addresses.count({name, endpoint.nic}) > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(origin, " has no address of NIC ", endpoint.nic, " of ", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HashFile> ParseHashFile(absl::string_view text, absl::string_view origin) {
  HashFile file;
  bool begun = false;
  TextLines lines(text, origin);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    absl::Status taken;
    if (begun) {
      taken = TakeLine(words, file);
    } else if (words.size() != 2 || words[0] != kMagic || words[1] != "1") {
      taken = absl::InvalidArgumentError("a file of hashes begins with \"weft-hashes 1\"");
    }
    begun = true;
    if (!taken.ok()) return lines.Error(taken.message());
  }
  if (!begun) return absl::InvalidArgumentError(absl::StrCat(origin, " is empty"));
  return file;
}

std::string HashFileText(const HashFile& file) {
  std::string text = absl::StrCat(kMagic, " 1\n");
  for (const auto& [nic, address] : file.addresses) {
    absl::StrAppend(&text, "address ", nic.first, " ", nic.second, " ", address.ToString(), "\n");
  }
  for (const auto& [name, hash] : file.hashes) {
    absl::StrAppend(&text, "hash ", name, " ", HashText(hash.options()), "\n");
  }
  for (const auto& [name, neighbours] : file.orders) {
    absl::StrAppend(&text, "order ", name, " ", absl::StrJoin(neighbours, " "), "\n");
  }
  for (const std::string& name : file.unknown) absl::StrAppend(&text, "unknown ", name, "\n");
  for (const auto& [router, name] : file.routers) {
    absl::StrAppend(&text, "router ", router, " ", name, "\n");
  }
  return text;
}

absl::StatusOr<HashFile> LoadHashFile(const std::string& words) {
  // A word with a colon and without a slash is a hash as text.
  const bool is_text = words.find(':') != std::string::npos && words.find('/') == std::string::npos;
  if (is_text) {
    HashFile file;
    WEFT_ASSIGN_OR_RETURN(SwitchHash hash, ParseHash(words));
    file.hashes.emplace("*", hash);
    return file;
  }
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(words));
  return ParseHashFile(text, words);
}

absl::StatusOr<FabricHashes> MakeHashes(const Fabric& fabric, const HashFile& file,
                                        absl::string_view origin) {
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, FabricHashes::Create(fabric));
  if (auto all = file.hashes.find("*"); all != file.hashes.end()) {
    for (int i = 0; i < fabric.nodes(); ++i) hashes.SetHash(NodeId(i), all->second);
  }
  for (const auto& [name, hash] : file.hashes) {
    if (name == "*") continue;
    absl::StatusOr<NodeId> node = fabric.Find(name);
    if (!node.ok()) return Foreign(origin, node.status());
    hashes.SetHash(*node, hash);
  }
  SwitchHashOptions nothing;
  nothing.function = HashFunction::kTable;
  nothing.table = std::make_shared<const HashTable>(0);
  WEFT_ASSIGN_OR_RETURN(const SwitchHash unknown, SwitchHash::Create(nothing));
  for (const std::string& name : file.unknown) {
    absl::StatusOr<NodeId> node = fabric.Find(name);
    if (!node.ok()) return Foreign(origin, node.status());
    hashes.SetHash(*node, unknown);
  }
  for (const auto& [name, neighbours] : file.orders) {
    absl::StatusOr<NodeId> node = fabric.Find(name);
    if (!node.ok()) return Foreign(origin, node.status());
    std::vector<NodeId> order;
    for (const std::string& neighbour : neighbours) {
      absl::StatusOr<NodeId> other = fabric.Find(neighbour);
      if (!other.ok()) return Foreign(origin, other.status());
      order.push_back(*other);
    }
    hashes.SetOrder(*node, order);
  }
  WEFT_RETURN_IF_ERROR(SetAddresses(fabric, file, origin, hashes));
  return hashes;
}

}  // namespace weft::topology
