// Whether Python has a signal to handle, asked from a wait in C++, so that Ctrl-C ends it.
#ifndef WEFT_PLUGINS_TORCH_INTERRUPTS_H_
#define WEFT_PLUGINS_TORCH_INTERRUPTS_H_

namespace weft::torch_plugin {

// In the main thread: runs the handlers of signals that have come. True where one of them raised an
// exception, which the interpreter raises once the caller is back in it. False in other threads,
// and in a process without an interpreter. The caller need not hold the interpreter's lock.
bool HandleSignals();

}  // namespace weft::torch_plugin

#endif  // WEFT_PLUGINS_TORCH_INTERRUPTS_H_
