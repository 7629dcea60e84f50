#include "trainer/checkpoint/local_tier.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/retention.h"

namespace weft::train {
namespace {

std::string DescribeOne(const std::string& path) {
  std::string text;
  const absl::StatusOr<Manifest> manifest = ReadManifest(path, &text);
  int64_t step = 0;
  if (!manifest.ok() ||
      !ParseCheckpointName(std::filesystem::path(path).filename().string(), step) ||
      step != manifest->step) {
    return "";
  }
  std::string line = absl::StrCat(step, " ", HashConfig(text), " ", manifest->shards.size());
  for (size_t shard = 0; shard < manifest->shards.size(); ++shard) {
    std::error_code error;
    const auto size =
        std::filesystem::file_size(absl::StrCat(path, "/", manifest->shards[shard].file), error);
    if (!error && static_cast<int64_t>(size) == manifest->shards[shard].bytes) {
      absl::StrAppend(&line, " ", shard);
    }
  }
  return line + "\n";
}

bool IsWhole(const LocalCheckpoint& checkpoint) {
  return std::all_of(checkpoint.holders.begin(), checkpoint.holders.end(),
                     [](const std::vector<bool>& ranks) {
                       return std::find(ranks.begin(), ranks.end(), true) != ranks.end();
                     });
}

}  // namespace

std::string DescribeLocal(const std::string& folder) {
  std::string text;
  const absl::StatusOr<std::vector<std::string>> paths = ListCheckpoints(folder);
  if (!paths.ok()) return text;
  for (const std::string& path : *paths) text += DescribeOne(path);
  return text;
}

LocalCheckpoint NewestLocal(const std::vector<std::string>& descriptions,
                            const std::set<int64_t>& damaged) {
  std::map<std::pair<int64_t, std::string>, LocalCheckpoint> found;  // by step and manifest
  for (size_t rank = 0; rank < descriptions.size(); ++rank) {
    for (absl::string_view line : absl::StrSplit(descriptions[rank], '\n', absl::SkipEmpty())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      int64_t step = 0;
      size_t shards = 0;
      if (words.size() < 3 || !absl::SimpleAtoi(words[0], &step) ||
          !absl::SimpleAtoi(words[2], &shards) || damaged.count(step) > 0) {
        continue;
      }
      LocalCheckpoint& checkpoint = found[{step, words[1]}];
      if (checkpoint.step < 0) {
        checkpoint = {step, {}, rank};
        checkpoint.holders.assign(shards, std::vector<bool>(descriptions.size()));
      }
      for (size_t word = 3; word < words.size(); ++word) {
        size_t shard = 0;
        if (absl::SimpleAtoi(words[word], &shard) && shard < checkpoint.holders.size()) {
          checkpoint.holders[shard][rank] = true;
        }
      }
    }
  }
  for (auto entry = found.rbegin(); entry != found.rend(); ++entry) {
    if (IsWhole(entry->second)) return entry->second;
  }
  return {};
}

absl::Status PruneLocal(const std::string& folder, int keep, int64_t committed) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
  int kept = 0;
  for (const std::string& path : paths) {  // newest first
    int64_t step = 0;
    if (!ParseCheckpointName(std::filesystem::path(path).filename().string(), step)) continue;
    if (step > committed || kept++ < keep) continue;
    WEFT_RETURN_IF_ERROR(RemoveCheckpoint(folder, path, step));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
