// What waits in C++ need of Python's interpreter: whether it has a signal to handle, so that Ctrl-C
// ends them, and its lock, without which they wait.
#ifndef WEFT_PLUGINS_TORCH_INTERRUPTS_H_
#define WEFT_PLUGINS_TORCH_INTERRUPTS_H_

namespace weft::torch_plugin {

// In the main thread: runs the handlers of signals that have come. True where one of them raised an
// exception, which the interpreter raises once the caller is back in it. False in other threads,
// and in a process without an interpreter. The caller need not hold the interpreter's lock.
bool HandleSignals();

// Releases the interpreter's lock, where the calling thread has it: what RetakeLock() takes to get
// it back. Else null, also once the interpreter ends.
void* ReleaseLock();
void RetakeLock(void* thread);

}  // namespace weft::torch_plugin

#endif  // WEFT_PLUGINS_TORCH_INTERRUPTS_H_
