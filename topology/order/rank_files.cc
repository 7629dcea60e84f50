#include "topology/order/rank_files.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/text_lines.h"

namespace weft::topology {
namespace {

// Ranks may stand in any order, but each once and none missing.
class TableBuilder {
 public:
  // `lines`: for errors.
  explicit TableBuilder(const TextLines& lines) : lines_(lines) {}
  absl::Status Add(int rank, const RankRow& row) {
    if (rank < 0 || rank > (1 << 22)) return lines_.Error("rank ", rank, " is out of range");
    if (!rows_.try_emplace(rank, row).second) {
      return lines_.Error("rank ", rank, " occurs twice");
    }
    return absl::OkStatus();
  }
  absl::StatusOr<RankTable> Finish() {
    RankTable table;
    for (auto& [rank, row] : rows_) {
      if (rank != static_cast<int>(table.size())) {
        return absl::InvalidArgumentError(
            absl::StrCat(lines_.file(), ": rank ", table.size(), " is missing"));
      }
      table.push_back(std::move(row));
    }
    if (table.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(lines_.file(), ": has no ranks"));
    }
    return table;
  }

 private:
  const TextLines& lines_;
  std::map<int, RankRow> rows_;
};

// Ranks by host, hosts in order of their first rank.
std::vector<std::pair<std::string, std::vector<int>>> ByHost(const RankTable& table) {
  std::vector<std::pair<std::string, std::vector<int>>> hosts;
  absl::flat_hash_map<std::string, size_t> index;
  for (size_t rank = 0; rank < table.size(); ++rank) {
    auto [at, is_new] = index.try_emplace(table[rank].host, hosts.size());
    if (is_new) hosts.emplace_back(table[rank].host, std::vector<int>());
    hosts[at->second].second.push_back(static_cast<int>(rank));
  }
  return hosts;
}

}  // namespace

RankTable TableOf(const RankOrder& order, const Fabric& fabric) {
  RankTable table;
  for (int rank = 0; rank < order.world(); ++rank) {
    table.push_back({fabric.node(order.HostOf(rank)).name, order.GpuOf(rank)});
  }
  return table;
}

absl::StatusOr<RankOrder> OrderFromTable(const RankTable& table, const Fabric& fabric) {
  RankOrder order;
  auto hosts = ByHost(table);
  if (hosts.empty()) return absl::InvalidArgumentError("the order has no ranks");
  size_t gpus = hosts[0].second.size();
  order.blocks.gpus = static_cast<int>(gpus);
  order.blocks.slots = static_cast<int>(hosts.size());
  order.blocks.slot_of.assign(table.size(), 0);
  order.blocks.gpu_of.assign(table.size(), 0);
  order.blocks.rank_at.assign(hosts.size() * gpus, -1);
  for (size_t slot = 0; slot < hosts.size(); ++slot) {
    const auto& [name, ranks] = hosts[slot];
    if (ranks.size() != gpus) {
      return absl::InvalidArgumentError(absl::StrCat("host ", name, " has ", ranks.size(),
                                                     " ranks, ", hosts[0].first, " has ", gpus));
    }
    WEFT_ASSIGN_OR_RETURN(NodeId host, fabric.Find(name));
    order.host_of_slot.push_back(host);
    for (int rank : ranks) {
      int gpu = table[static_cast<size_t>(rank)].gpu;
      if (gpu < 0 || gpu >= order.blocks.gpus) {
        return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is on GPU ", gpu, " of ",
                                                       name, ", which has ", gpus, " ranks"));
      }
      int32_t& at = order.blocks.rank_at[slot * gpus + static_cast<size_t>(gpu)];
      if (at >= 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("ranks ", at, " and ", rank, " are both on GPU ", gpu, " of ", name));
      }
      at = rank;
      order.blocks.slot_of[static_cast<size_t>(rank)] = static_cast<int32_t>(slot);
      order.blocks.gpu_of[static_cast<size_t>(rank)] = gpu;
    }
  }
  return order;
}

std::string RankFileText(const RankTable& table) {
  std::string text = "# rank host gpu\n";
  for (size_t rank = 0; rank < table.size(); ++rank) {
    absl::StrAppend(&text, rank, " ", table[rank].host, " ", table[rank].gpu, "\n");
  }
  return text;
}

absl::StatusOr<RankTable> ParseRankFile(absl::string_view text, absl::string_view name) {
  TextLines lines(text, name);
  TableBuilder table(lines);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    int rank = 0, gpu = 0;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &rank) ||
        !absl::SimpleAtoi(words[2], &gpu)) {
      return lines.Error("expected 'rank host gpu', as '0 h12 0'");
    }
    WEFT_RETURN_IF_ERROR(table.Add(rank, {std::string(words[1]), gpu}));
  }
  return table.Finish();
}

absl::StatusOr<std::string> SlurmHostfileText(const RankTable& table) {
  for (const auto& [host, ranks] : ByHost(table)) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      int gpu = table[static_cast<size_t>(ranks[i])].gpu;
      if (gpu == static_cast<int>(i)) continue;
      return absl::FailedPreconditionError(absl::StrCat("Slurm gives GPU ", i, " of ", host,
                                                        " to rank ", ranks[i], ", the order GPU ",
                                                        gpu, ": GPUs must rise with ranks"));
    }
  }
  std::string text;
  for (const RankRow& row : table) absl::StrAppend(&text, row.host, "\n");
  return text;
}

absl::StatusOr<RankTable> ParseSlurmHostfile(absl::string_view text, absl::string_view name) {
  RankTable table;
  absl::flat_hash_map<std::string, int> used;
  TextLines lines(text, name);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    if (words.size() != 1) return lines.Error("expected the name of one host");
    std::string host(words[0]);
    table.push_back({host, used[host]++});
  }
  if (table.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": has no ranks"));
  return table;
}

std::string OpenMpiRankfileText(const RankTable& table, int cores_per_rank) {
  std::string text;
  for (size_t rank = 0; rank < table.size(); ++rank) {
    int first = table[rank].gpu * cores_per_rank;
    absl::StrAppend(&text, "rank ", rank, "=", table[rank].host, " slot=", first);
    if (cores_per_rank > 1) absl::StrAppend(&text, "-", first + cores_per_rank - 1);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<RankTable> ParseOpenMpiRankfile(absl::string_view text, absl::string_view name,
                                               int cores_per_rank) {
  TextLines lines(text, name);
  TableBuilder table(lines);
  absl::string_view line;
  while (lines.Next(line)) {
    if (line.empty()) continue;
    std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t="), absl::SkipEmpty());
    int rank = 0, core = 0;
    if (words.size() != 5 || words[0] != "rank" || words[3] != "slot" ||
        !absl::SimpleAtoi(words[1], &rank) ||
        !absl::SimpleAtoi(words[4].substr(0, words[4].find('-')), &core)) {
      return lines.Error("expected 'rank N=HOST slot=CORES', as 'rank 0=h12 slot=0-3'");
    }
    if (core % cores_per_rank != 0) {
      return lines.Error("slot ", core, " begins no share of ", cores_per_rank);
    }
    WEFT_RETURN_IF_ERROR(table.Add(rank, {std::string(words[2]), core / cores_per_rank}));
  }
  return table.Finish();
}

absl::StatusOr<std::string> TorchrunText(const RankTable& table) {
  auto hosts = ByHost(table);
  size_t gpus = hosts.empty() ? 0 : hosts[0].second.size();
  std::string text = absl::StrCat(
      "#!/bin/sh\n"
      "# Starts this host's part of a job of ",
      table.size(),
      " ranks with torchrun, in the planned order.\n"
      "# On every host: sh torchrun.sh train.py ...   (WEFT_NODE: its name, where hostname -s\n"
      "# is another)\n"
      "case \"${WEFT_NODE:-$(hostname -s)}\" in\n");
  for (size_t node = 0; node < hosts.size(); ++node) {
    const auto& [host, ranks] = hosts[node];
    for (size_t i = 0; i < ranks.size(); ++i) {
      bool fits = ranks.size() == gpus && ranks[i] == static_cast<int>(node * gpus + i) &&
                  table[static_cast<size_t>(ranks[i])].gpu == static_cast<int>(i);
      if (fits) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("torchrun gives a host consecutive ranks; here ", host, " has rank ",
                       ranks[i], " on GPU ", table[static_cast<size_t>(ranks[i])].gpu));
    }
    absl::StrAppend(&text, "  ", host, ") node_rank=", node, ";;\n");
  }
  absl::StrAppend(&text,
                  "  *) echo \"torchrun.sh: ${WEFT_NODE:-$(hostname -s)} is no host of this job\" "
                  ">&2; exit 1;;\n"
                  "esac\n"
                  "exec torchrun --nnodes=",
                  hosts.size(), " --nproc-per-node=", gpus,
                  " --node-rank=\"$node_rank\" \\\n"
                  "  --master-addr=\"${MASTER_ADDR:-",
                  hosts.empty() ? "" : hosts[0].first,
                  "}\" --master-port=\"${MASTER_PORT:-29500}\" \"$@\"\n");
  return text;
}

absl::StatusOr<RankTable> ParseTorchrun(absl::string_view text, absl::string_view name) {
  std::map<int, std::string> hosts;
  int gpus = 0;
  TextLines lines(text, name);
  absl::string_view line;
  while (lines.Next(line)) {
    size_t at = line.find(") node_rank=");
    int node = 0;
    if (at != absl::string_view::npos &&
        absl::SimpleAtoi(absl::StripSuffix(line.substr(at + 12), ";;"), &node) &&
        !hosts.try_emplace(node, line.substr(0, at)).second) {
      return lines.Error("node rank ", node, " occurs twice");
    }
    size_t option = line.find("--nproc-per-node=");
    if (option != absl::string_view::npos) {
      absl::string_view value = line.substr(option + 17);
      if (!absl::SimpleAtoi(value.substr(0, value.find(' ')), &gpus) || gpus < 1 || gpus > 1024) {
        return lines.Error("--nproc-per-node is no number from 1 to 1024");
      }
    }
  }
  RankTable table;
  for (const auto& [node, host] : hosts) {
    if (int64_t{node} * gpus != static_cast<int64_t>(table.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": a node rank before ", node, " is missing"));
    }
    for (int gpu = 0; gpu < gpus; ++gpu) table.push_back({host, gpu});
  }
  if (table.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": has no ranks"));
  return table;
}

}  // namespace weft::topology
