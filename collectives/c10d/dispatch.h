// A shorter way through PyTorch's dispatcher to calls on host tensors.
//
// c10d's operators have no kernel for autograd. The dispatcher takes them through its fallback for
// such operators, for which every argument is put into a box and taken out again, mostly to find
// that no tensor requires a gradient: more than half of what PyTorch's C++ takes for a small call.
// The kernels that are registered here ask the tensors themselves, and leave a call to the
// fallback, with its warning, where one of them requires a gradient. They serve all backends of the
// process, as operators belong to none.
#ifndef WEFT_COLLECTIVES_C10D_DISPATCH_H_
#define WEFT_COLLECTIVES_C10D_DISPATCH_H_

namespace weft::collectives {

// Once a process. Leaves out an operator that has a kernel for autograd.
void ShortenDispatch();

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_DISPATCH_H_
