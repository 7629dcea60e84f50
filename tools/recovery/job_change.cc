#include "tools/recovery/job_change.h"

#include "absl/strings/str_cat.h"

namespace weft::recovery {

std::string ToText(const Action& action) {
  std::string text;
  switch (action.kind) {
    case ActionKind::kPlace:
      text = absl::StrCat("place node ", action.node, " on ", action.host);
      break;
    case ActionKind::kStart:
      text = absl::StrCat("start rank ", action.rank, " (generation ", action.generation, ") on ",
                          action.host);
      break;
    case ActionKind::kWait:
      text = absl::StrCat("start rank ", action.rank, " (generation ", action.generation, ") on ",
                          action.host, " later");
      break;
    case ActionKind::kTest:
      text = absl::StrCat("test ", action.host);
      break;
    case ActionKind::kEvict:
      text = absl::StrCat("evict ", action.host,
                          action.node < 0 ? "" : absl::StrCat(" from node ", action.node));
      break;
    case ActionKind::kReplay:
      text = "replay";
      break;
    case ActionKind::kStop:
      text = "stop";
      break;
  }
  if (!action.text.empty()) absl::StrAppend(&text, ": ", action.text);
  return text;
}

}  // namespace weft::recovery
