// The interpreter's functions are looked up where the process has one: this library names no symbol
// of Python, so that one file serves all its versions. All but PyGILState_Check, which all versions
// have, are of the stable ABI.
#include "plugins/torch/interrupts.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace weft::torch_plugin {
namespace {

struct Interpreter {
  template <typename Function>
  static void Find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }
  Interpreter() {
    Find(is_initialized, "Py_IsInitialized");
    Find(ensure, "PyGILState_Ensure");
    Find(release, "PyGILState_Release");
    Find(check_signals, "PyErr_CheckSignals");
    Find(fetch, "PyErr_Fetch");
    Find(restore, "PyErr_Restore");
    Find(add_pending_call, "Py_AddPendingCall");
    Find(has_lock, "PyGILState_Check");
    Find(save_thread, "PyEval_SaveThread");
    Find(restore_thread, "PyEval_RestoreThread");
    complete = is_initialized != nullptr && ensure != nullptr && release != nullptr &&
               check_signals != nullptr && fetch != nullptr && restore != nullptr &&
               add_pending_call != nullptr && has_lock != nullptr && save_thread != nullptr &&
               restore_thread != nullptr;
  }
  int (*is_initialized)();
  int (*ensure)();  // an enumeration, as large as an int
  void (*release)(int state);
  int (*check_signals)();
  void (*fetch)(void** type, void** value, void** traceback);
  void (*restore)(void* type, void* value, void* traceback);
  int (*add_pending_call)(int (*call)(void*), void* argument);
  int (*has_lock)();
  void* (*save_thread)();
  void (*restore_thread)(void* thread);
  bool complete;
};

const Interpreter& Python() {
  static const Interpreter interpreter;
  return interpreter;
}

struct Raised {
  void *type, *value, *traceback;
};

int RaiseAgain(void* argument) {
  auto* raised = static_cast<Raised*>(argument);
  Python().restore(raised->type, raised->value, raised->traceback);
  delete raised;
  return -1;
}

}  // namespace

bool HandleSignals() {
  const Interpreter& python = Python();
  if (!python.complete || syscall(SYS_gettid) != getpid() || python.is_initialized() == 0) {
    return false;
  }
  const int state = python.ensure();
  const bool raised = python.check_signals() != 0;
  if (raised) {
    // The caller throws, and pybind's translation would take the exception's place.
    auto* kept = new Raised{};
    python.fetch(&kept->type, &kept->value, &kept->traceback);
    if (python.add_pending_call(&RaiseAgain, kept) != 0) RaiseAgain(kept);
  }
  python.release(state);
  return raised;
}

void* ReleaseLock() {
  const Interpreter& python = Python();
  if (!python.complete || python.is_initialized() == 0 || python.has_lock() == 0) return nullptr;
  return python.save_thread();
}

void RetakeLock(void* thread) { Python().restore_thread(thread); }

}  // namespace weft::torch_plugin
