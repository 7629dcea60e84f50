"""How groups end: in order and out of order, with works unfinished, by signals and exceptions, in
forked children; and that what ends leaves nothing behind."""

import installed

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import tempfile
import time
import unittest

import torch
import torch.distributed as dist

HEAD = """
import os, sys, time, signal
import torch, torch.distributed as dist, weft.torch
from datetime import timedelta
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("weft", init_method=os.environ["STORE"], rank=rank, world_size=size)
store = dist.distributed_c10d._get_default_store()


def meet(name):
    store.set(f"{name} {rank}", "")
    store.wait([f"{name} {r}" for r in range(size)])


ones = torch.ones(1000)
dist.all_reduce(ones)
meet("all have links, and nothing is under way")
"""


def run(test: unittest.TestCase, size: int, text: str, statuses=None, **environment) -> list[str]:
    """What each rank printed; `statuses`: right exit statuses, else all 0."""
    with installed.programs(size, HEAD + text, **environment) as ranks:
        ended = [rank.wait() for rank in ranks]
        outputs = [rank.output() for rank in ranks]
    test.assertEqual(ended, statuses or [0] * size, "\n".join(outputs))
    for output in outputs:
        test.assertNotIn("terminate called", output)
    return outputs


class End(unittest.TestCase):
    def test_of_a_process_that_destroys_nothing(self):
        run(self, 2, "keep = dist.all_reduce(ones, async_op=True)\nkeep.wait()")

    def test_with_a_call_that_nobody_answers(self):
        run(self, 2, "work = dist.all_reduce(ones, async_op=True) if rank == 0 else None")

    def test_with_futures_whose_callbacks_never_ran(self):
        run(self, 2, """
if rank == 0:
    work = dist.all_reduce(ones, async_op=True)
    future = work.get_future().then(lambda done: print("ran"))
dist.destroy_process_group()
""")

    def test_with_references_to_groups_works_and_futures_kept(self):
        run(self, 2, """
group = dist.distributed_c10d._get_default_group()
backend = group._get_backend(torch.device("cpu"))
work = dist.all_reduce(ones, async_op=True)
future = work.get_future()
work.wait()
dist.destroy_process_group()
try:
    backend.allreduce([ones])
except RuntimeError as error:
    assert "was shut down" in str(error), error
else:
    raise AssertionError("a group that was shut down takes calls")
backend.shutdown()
backend.abort()
""")

    def test_of_single_groups_in_any_order(self):
        run(self, 2, """
first, second, third = (dist.new_group([0, 1]) for _ in range(3))
for group in (second, first):
    dist.all_reduce(ones, group=group)
    dist.destroy_process_group(group)
dist.all_reduce(ones, group=third)
dist.all_reduce(ones)
dist.destroy_process_group()
dist.init_process_group("weft")
dist.all_reduce(ones)
""")

    def test_and_beginning_anew_at_one_store(self):
        run(self, 2, """
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
dist.destroy_process_group()
for round in range(5):
    dist.init_process_group("weft", store=store, rank=rank, world_size=size)
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.eq(size).all()
    dist.barrier()
    dist.destroy_process_group()
""")

    def test_by_an_exception_on_one_rank(self):
        outputs = run(self, 3, """
if rank == 1:
    raise KeyError("the user's fault")
dist.all_reduce(ones)
""", [1, 1, 1])
        self.assertIn("KeyError", outputs[1])
        for rank in (0, 2):
            self.assertRegex(outputs[rank], r"DistBackendError: weft: .*rank 1 ")

    def test_by_ctrl_c_in_a_wait(self):
        with installed.programs(2, HEAD + """
print("waits" if rank == 0 else "idles", flush=True)
if rank == 1:
    time.sleep(300)
dist.all_reduce(ones)
""") as ranks:
            ranks[0].wait_for_line("waits")
            ranks[1].wait_for_line("idles")
            ranks[0].process.send_signal(signal.SIGINT)
            self.assertNotEqual(ranks[0].wait(), 0)
            self.assertIn("KeyboardInterrupt", ranks[0].output())

    def test_not_by_a_signal_whose_handler_returns(self):
        with installed.programs(2, HEAD + """
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
print("ready", flush=True)
if rank == 1:
    sys.stdin.readline()
dist.all_reduce(ones)
""") as ranks:
            for rank in ranks:
                rank.wait_for_line("ready")
            ranks[0].process.send_signal(signal.SIGUSR1)
            ranks[0].wait_for_line("handled")  # while it waits for rank 1, which reads
            ranks[1].process.stdin.close()
            self.assertEqual([rank.wait() for rank in ranks], [0, 0])

    def test_by_sigkill_names_the_rank(self):
        with installed.programs(3, HEAD + """
print("ready", flush=True)
if rank == 2:
    time.sleep(300)
try:
    dist.all_reduce(ones)
except dist.DistBackendError as error:
    print("error:", error)
try:
    dist.barrier()
except dist.DistBackendError as error:
    print("again:", error)
""") as ranks:
            for rank in ranks:
                rank.wait_for_line("ready")
            ranks[2].process.kill()
            for rank in ranks[:2]:
                self.assertEqual(rank.wait(), 0, rank.output())
                self.assertRegex(rank.output(), r"error: weft: .*rank 2 ")
                self.assertRegex(rank.output(), r"again: weft: .*rank 2 ")

    def test_while_daemon_threads_wait_or_call(self):
        # CPython ends a thread that comes back to it then by unwinding it, for which C++ aborts.
        run(self, 2, """
import threading
group = dist.new_group()
def waits():
    dist.all_reduce(ones.clone())
def calls():
    while True:
        dist.all_reduce(ones.clone(), group=group)
threading.Thread(target=calls, daemon=True).start()
if rank == 0:
    threading.Thread(target=waits, daemon=True).start()
store.add("threads run", 1)
while store.add("threads run", 0) < 2:
    time.sleep(0.01)
time.sleep(0.3 * (rank + 1))  # of rank 1 both threads hear that rank 0 has gone
""")


    def test_by_an_exception_while_another_thread_is_in_a_call(self):
        with installed.programs(2, HEAD + """
import threading
if rank == 1:
    sys.stdin.readline()  # and calls nothing
    os._exit(0)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
before = backend._get_sequence_number_for_group()
threading.Thread(target=dist.barrier, daemon=True).start()
while backend._get_sequence_number_for_group() == before:
    time.sleep(0.01)
future = dist.all_reduce(ones, async_op=True).get_future()
raise KeyError("the user's fault")
""") as ranks:
            self.assertEqual(ranks[0].wait(60), 1, ranks[0].output())
            self.assertIn("KeyError", ranks[0].output())
            self.assertNotIn("terminate called", ranks[0].output())
            ranks[1].process.stdin.close()
            self.assertEqual(ranks[1].wait(), 0, ranks[1].output())


class Meeting(unittest.TestCase):
    def test_names_the_rank_that_does_not_come(self):
        with installed.programs(2, """
import os
from datetime import timedelta
import torch.distributed as dist
rank, store = os.environ["RANK"], os.environ["STORE"]
# The two set out together, however long each took to load PyTorch.
loaded = dist.FileStore(store.removeprefix("file://") + "-loaded", 2)
loaded.set(rank, "")
loaded.wait(["0", "1"])
try:
    dist.init_process_group("weft", init_method=store, rank=int(rank), world_size=3,
                            timeout=timedelta(seconds=4))
except dist.DistBackendError as error:
    print("error:", error)
""") as ranks:
            for rank in ranks:
                # Which waits less than the 30 minutes that PyTorch has where nothing is said.
                self.assertEqual(rank.wait(), 0, rank.output())
                self.assertIn('error: weft: DEADLINE_EXCEEDED: rank 2 of 3 has not come to group "',
                              rank.output())
                self.assertIn(" within 4s", rank.output())


class Timeout(unittest.TestCase):
    def test_of_a_wait_leaves_the_work(self):
        outputs = run(self, 2, """
work = dist.all_reduce(ones, async_op=True) if rank == 0 else None
if rank == 0:
    try:
        work.wait(timedelta(milliseconds=50))
    except dist.DistBackendError as error:
        print("error:", error)
    store.set("go", "")
    work.wait()
else:
    store.wait(["go"])
    dist.all_reduce(ones)
print(ones[0].item())
""")
        self.assertIn(" timeout of 50ms ran out", outputs[0])
        self.assertEqual([output.split()[-1] for output in outputs], ["4.0", "4.0"])

    def test_of_a_group_ends_waits_and_futures(self):
        outputs = run(self, 2, """
group = dist.new_group([0, 1], timeout=timedelta(milliseconds=300))
if rank == 0:
    work = dist.all_reduce(ones, group=group, async_op=True)
    for wait in (work.wait, work.get_future().wait):
        try:
            wait()
        except RuntimeError as error:
            print("error:", error)
    store.set("go", "")
else:
    store.wait(["go"])
os._exit(0)
""")
        self.assertEqual(len(re.findall(r"error: .* timeout of 300ms ran out", outputs[0])), 2,
                         outputs[0])


class Fork(unittest.TestCase):
    def test_in_a_child_every_call_says_why_not(self):
        run(self, 2, """
import warnings; warnings.simplefilter("ignore")
given = torch.ones(10)
work = dist.all_reduce(given, async_op=True) if rank == 0 else None
child = os.fork()
if child == 0:
    calls = [lambda: dist.all_reduce(ones), lambda: dist.new_group([0, 1]),
             lambda: dist.group.WORLD.split_group([0, 1], group_name="split")]
    if rank == 0:
        calls += [work.wait, work.get_future, work.is_completed]
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            assert "forked from" in str(error), error
        else:
            raise AssertionError("a forked child used its parent's group")
    sys.exit(0)  # with all that interpreters do at their end
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
meet("both children have ended")
if rank == 1:
    work = dist.all_reduce(given, async_op=True)
work.wait()
assert given.eq(2).all(), given
for _ in range(3):
    dist.all_reduce(ones)
dist.barrier()
dist.destroy_process_group()
""")

    @unittest.skipIf(installed.SANITIZER == "thread",
                     "TSan ends a forked child whose new thread has the id of one of its parent's")
    def test_workers_of_a_data_loader_hurt_nobody(self):
        run(self, 2, """
from torch.utils.data import DataLoader
total = torch.zeros(1)
for batch in DataLoader(torch.arange(32.), batch_size=4, num_workers=2):
    dist.all_reduce(batch)
    total += batch.sum()
assert total.item() == 2 * sum(range(32)), total
""")


def _shared_memory(process: int | str = "self") -> set[str]:
    """Files in /dev/shm that a process has mapped or open."""
    folder = pathlib.Path("/proc", str(process))
    names = set(re.findall(r" (/dev/shm/.+)$", (folder / "maps").read_text(), re.MULTILINE))
    for link in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            names.add(os.readlink(link))
    return {name for name in names if name.startswith("/dev/shm/")}


_LATE = 4  # of what a process has once, and may have got only after it was counted


@dataclasses.dataclass
class _State:
    """What a process has, and how much of it."""

    descriptors: int
    threads: int
    mappings_of_peers: int  # anonymous files, which is how memory is shared
    files_in_shared_memory: int

    def exceeds(self, other: "_State") -> bool:
        return any(mine > theirs + _LATE
                   for mine, theirs in zip(dataclasses.astuple(self), dataclasses.astuple(other)))


def _state() -> _State:
    maps = pathlib.Path("/proc/self/maps").read_text()
    return _State(len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
                  maps.count("/memfd:"), len(_shared_memory()))


def _resident_kib() -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1])


def _call(group) -> None:
    dist.all_reduce(torch.ones(64), group=group, async_op=True).get_future().wait()


def _cycles_of_subgroups(rank: int, cycles: int) -> str:
    def cycle() -> None:
        group = dist.new_group()
        _call(group)
        dist.destroy_process_group(group)

    return _repeat(cycle, cycles, kib_each=8)


def _cycles_of_groups_of_groups(rank: int, cycles: int) -> str:
    """Split and shrunk ones, of which only this process knows when they end."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    made = 0

    def cycle() -> None:
        nonlocal made
        made += 1
        part = dist.group.WORLD.split_group([0, 1], group_name=f"part {made}")
        part.allreduce([torch.ones(64)]).wait()
        shrunk = backend.shrink([1 - rank])
        shrunk.allreduce([torch.ones(64)]).wait()
        part.shutdown()  # the other one ends with its last reference

    return _repeat(cycle, cycles, kib_each=16)


def _cycles_of_worlds(rank: int, cycles: int) -> str:
    size = dist.get_world_size()
    # A file store looks for a key every 10 ms, which would be most of a cycle.
    shared = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        shared.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(shared.get("port")), None, False)
    dist.barrier()
    dist.destroy_process_group()

    def cycle() -> None:
        dist.init_process_group("weft", store=store, rank=rank, world_size=size)
        _call(None)
        dist.barrier()
        dist.destroy_process_group()

    return _repeat(cycle, cycles, kib_each=16)


def _repeat(cycle, cycles: int, kib_each: int) -> str:
    for _ in range(10):  # what is made once
        cycle()
    before, resident = _state(), _resident_kib()
    for _ in range(cycles):
        cycle()
    grown, end = _resident_kib() - resident, time.monotonic() + 60
    # The two may differ a little: a thread that was joined just now counts for a moment, a peer's memory is mapped when
    # the peer has offered it, and the other rank's connection to the store that rank 0 serves goes when that rank ends.
    # What a cycle leaves behind is there as often as there were cycles.
    assert cycles > 10 * _LATE
    while (after := _state()).exceeds(before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not after.exceeds(before), f"before {cycles} cycles {before}, after them {after}"
    # Names of groups stay in PyTorch's tables, and keys of each meeting at the store.
    assert grown < 4096 + kib_each * cycles, f"{grown} KiB more after {cycles} cycles"
    return f"{cycles} cycles: {after}, {before} before, and {grown} KiB more of memory"


@installed.needs_plain_memory
class Leak(unittest.TestCase):
    def report(self, figures: list[str]) -> None:
        print(f"{self._testMethodName}: {figures[0]}", flush=True)

    def test_nothing_by_making_and_destroying_subgroups(self):
        self.report(installed.fork_ranks(2, _cycles_of_subgroups, 1000))

    def test_nothing_by_groups_that_groups_make(self):
        self.report(installed.fork_ranks(2, _cycles_of_groups_of_groups, 200))

    def test_nothing_by_making_and_destroying_worlds(self):
        self.report(installed.fork_ranks(2, _cycles_of_worlds, 1000))

    def test_nothing_in_shared_memory_by_killed_jobs_but_their_records(self):
        # docs/observability.md: the ring of a process that dies stays for an hour.
        with tempfile.TemporaryDirectory(prefix="weft-records-", dir="/dev/shm") as rings:
            os.chmod(rings, 0o700)
            with installed.programs(
                    2, HEAD + "print('ready', flush=True)\ntime.sleep(300)",
                    WEFT_RECORDS_FOLDER=rings) as ranks:
                for rank in ranks:
                    rank.wait_for_line("ready")
                used = set().union(*(_shared_memory(rank.process.pid) for rank in ranks))
                for rank in ranks:
                    rank.process.kill()
                for rank in ranks:
                    rank.wait()
            left = {name for name in used if os.path.exists(name)}
            self.assertEqual({pathlib.Path(name).parent for name in left},
                             {pathlib.Path(rings)}, used)
            self.assertEqual(len(left), 2)
            for name in left:
                self.assertRegex(name, r"\.weft$")
                self.assertLessEqual(os.path.getsize(name), 512 << 10)
            # The next one that starts keeps of them what it is allowed to.
            room = max(os.path.getsize(name) for name in left) + 1
            run(self, 1, "", WEFT_RECORDS_FOLDER=rings, WEFT_RECORDS_DEAD_BYTES=str(room))
            self.assertEqual(len({name for name in left if os.path.exists(name)}), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
