// Close-on-fork for sockets, which POSIX.1-2024 has as FD_CLOFORK and Linux has not.
//
// A process that is forked and calls no exec, such as a data loader's worker, has copies of its
// parent's descriptors. The kernel closes a connection once nobody holds it: where the parent is
// killed and the child lives on, the parent's peers would not learn of that, and whoever dials its
// listener would be let in by nobody.
#ifndef WEFT_NET_TCP_CLOSE_ON_FORK_H_
#define WEFT_NET_TCP_CLOSE_ON_FORK_H_

namespace weft::net {

// A child that this process forks from now on, by fork(2), has /dev/null under the number of the
// socket `fd`: the connection is the parent's alone, and an owner that the child has a copy of
// closes no descriptor of somebody else. What takes the number in this process once `fd` is closed
// is left alone. Descriptors from 65,536 on, and a child without any free descriptor, keep their
// copies. Any thread.
void SetCloseOnFork(int fd);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_CLOSE_ON_FORK_H_
