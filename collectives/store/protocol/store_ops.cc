// The store's operations: their names, and which of them change something.
#include "collectives/store/protocol/store_protocol.h"

namespace weft::collectives {

const char* ToString(StoreOp op) {
  switch (op) {
    case StoreOp::kSet:
      return "set";
    case StoreOp::kGet:
      return "get";
    case StoreOp::kAdd:
      return "add";
    case StoreOp::kCompareSet:
      return "compare-set";
    case StoreOp::kDelete:
      return "delete";
    case StoreOp::kKeyCount:
      return "key-count";
    case StoreOp::kCheck:
      return "check";
    case StoreOp::kWait:
      return "wait";
    case StoreOp::kAppend:
      return "append";
    case StoreOp::kMultiGet:
      return "multi-get";
    case StoreOp::kMultiSet:
      return "multi-set";
    case StoreOp::kBarrier:
      return "barrier";
    case StoreOp::kAllGather:
      return "all-gather";
    case StoreOp::kGoodbye:
      return "goodbye";
    case StoreOp::kHello:
      return "hello";
    case StoreOp::kGroup:
      return "group";
    case StoreOp::kWatch:
      return "watch";
    case StoreOp::kGather:
      return "gather";
    case StoreOp::kAnnounce:
      return "announce";
    case StoreOp::kExchange:
      return "exchange";
  }
  return "unknown";
}

bool ChangesState(StoreOp op) {
  switch (op) {
    case StoreOp::kGet:
    case StoreOp::kKeyCount:
    case StoreOp::kCheck:
    case StoreOp::kWait:
    case StoreOp::kMultiGet:
    case StoreOp::kGoodbye:
    case StoreOp::kHello:
    case StoreOp::kWatch:
      return false;
    default:
      return true;
  }
}

bool IsGroup(StoreOp op) {
  switch (op) {
    case StoreOp::kBarrier:
    case StoreOp::kAllGather:
    case StoreOp::kGather:
    case StoreOp::kExchange:
    case StoreOp::kGroup:
      return true;
    default:
      return false;
  }
}

}  // namespace weft::collectives
