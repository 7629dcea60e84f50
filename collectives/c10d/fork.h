// Whether this process was forked from one that held groups: of threads, sockets and shared memory
// a forked child has copies or nothing at all, so that everything it inherited must stay untouched.
#ifndef WEFT_COLLECTIVES_C10D_FORK_H_
#define WEFT_COLLECTIVES_C10D_FORK_H_

namespace weft::collectives {

// How many fork(2)s lie between this process and the one that first called this function. Objects
// keep the number of their birth: where it differs, they are copies in a child. Thread-safe; costs
// a load.
int ForkCount();

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_FORK_H_
