"""Groups that groups make of themselves: split, merge and shrink, and groups made afterwards."""

import installed

import os
import pathlib
import signal
import threading
import time
import unittest

import torch
import torch.distributed as dist

import weft.torch

LEFT_OUT = 1  # in the middle, so that ranks behind it move up


def total(rank: int, group=None) -> float:
    """Of 2^rank over the members, `rank` in the default group that was there at first: each set of
    members has its own."""
    tensor = torch.tensor([2.0 ** rank])
    dist.all_reduce(tensor, group=group)
    return tensor.item()


def total_of(rank: int, group) -> float:
    """As total(), of a ProcessGroup that torch.distributed does not know."""
    tensor = torch.tensor([2.0 ** rank])
    group.allreduce([tensor]).wait()
    return tensor.item()


def names() -> set[str]:
    return {group["group"] for group in weft.torch.statistics()}


def expect(got, wanted, what: str) -> None:
    assert got == wanted, f"{what}: got {got}, wanted {wanted}"


def store():
    return dist.distributed_c10d._get_default_store()


def meet(rank: int) -> None:
    """A call, which has ended on all ranks when this returns."""
    total(rank)
    met = store().clone()
    met.set(f"rank {rank} has met", "")
    met.wait([f"rank {r} has met" for r in range(dist.get_world_size())])


def survive(rank: int, body) -> None:
    """Runs `body` on all ranks but the one left out, which waits until they have ended."""
    key, others = "the survivors have ended", store().clone()
    if rank != LEFT_OUT:
        try:
            body(rank)
        finally:
            others.add(key, 1)
    else:
        others.wait([key])


def refused(call) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was not refused")


def has_options_of_its_own(rank: int) -> None:
    def made(**settings):
        return dist.new_group(pg_options=weft.torch.Options(settings=settings))

    problem = refused(lambda: made(transport="tcp"))
    assert "transport=tcp" in problem and "init_process_group()" in problem, problem
    assert "collective.timeout, collective.algorithm" in problem, problem
    problem = refused(lambda: made(**{"collective.algorithm": "pigeon"}))
    assert "pigeon" in problem, problem
    expect(total(rank, made(transport="auto")), 15.0, "with what the default group has")
    own = {"collective.timeout": "3s", "collective.algorithm": "ring"}
    brief = made(**own)
    expect(total(rank, brief), 15.0, "with its own")
    meet(rank)
    # Its calls end in its time, and not after half an hour as the default group's: fork_ranks() waits less.
    # They name the rank that they wait for and its algorithm.
    if rank != LEFT_OUT:
        problem = refused(lambda: dist.all_reduce(torch.ones(3), group=brief))
        assert f"rank {LEFT_OUT} has not called it" in problem and ", ring)" in problem, problem
    everybody = store().clone()
    everybody.add("have ended", 1)
    while everybody.add("have ended", 0) < 4:
        time.sleep(0.01)


def splits(rank: int) -> None:
    world = dist.group.WORLD
    evens = world.split_group([0, 2], group_name="evens")
    expect(evens is None, rank not in (0, 2), "who is a member")
    if evens is not None:
        expect(total_of(rank, evens), 5.0, "a split group")
        assert "evens" in names(), names()
        row = next(row for row in weft.torch.statistics() if row["group"] == "evens")
        expect((row["ranks"], row["calls"]["all_reduce"]["calls"]), ([0, 2], 1), "its statistics")
        single = evens.split_group([0], group_name="single")  # rank 0 of the evens
        expect(single is None, rank != 0, "who is a member")
        if single is not None:
            expect(total_of(rank, single), 1.0, "a group split of a split group")
            single.shutdown()
            assert "single" not in names(), names()
    dist.barrier()
    expect(total(rank), 15.0, "the world afterwards")


def merges(rank: int) -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    merged = halves[rank // 2].merge_remote_group(store(), 4, group_name="merged")
    expect(total_of(rank, merged), 15.0, "a merged group")
    expect(merged.size(), 4, "its size")
    assert "merged" in names(), names()
    dist.barrier()


def _shrink_the_world(rank: int) -> None:
    total(rank, dist.new_group())  # which ends with the world that it was made of
    shrunk = dist.shrink_group([LEFT_OUT])
    place = [0, None, 1, 2][rank]
    assert shrunk is dist.group.WORLD
    expect((dist.get_rank(), dist.get_world_size()), (place, 3), "rank and size")
    expect(total(rank), 13.0, "the shrunk world")
    # Its ranks 1 and 2 are those that were 2 and 3.
    pair, everybody = dist.new_group([1, 2]), dist.new_group()
    expect(total(rank, everybody), 13.0, "a group of all that are left")
    if place != 0:
        expect(total(rank, pair), 12.0, "a group made after the shrink")
    again = dist.new_group([0, 1])
    if place != 2:
        expect(total(rank, again), 5.0, "another one")
    expect(len(weft.torch.statistics()), 4 if place == 1 else 3, "groups alive")
    dist.barrier()
    dist.destroy_process_group()
    expect(weft.torch.statistics(), [], "groups after the end")


def shrinks_the_world(rank: int) -> None:
    if rank == LEFT_OUT:
        total(rank, dist.new_group())
    survive(rank, _shrink_the_world)


def _shrink_a_group(rank: int) -> None:
    # torch.distributed takes the ranks to exclude for ranks of the world in its own tables; the
    # process group itself does not.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    shrunk = backend.shrink([LEFT_OUT])
    expect((shrunk.rank(), shrunk.size()), ([0, None, 1, 2][rank], 3), "rank and size")
    tensor = torch.tensor([2.0 ** rank])
    shrunk.allreduce([tensor]).wait()
    expect(tensor.item(), 13.0, "a shrunk group beside its parent")
    expect(len(weft.torch.statistics()), 2, "groups alive")
    try:
        backend.shrink([LEFT_OUT], 2)
    except RuntimeError as error:
        assert "flags are 2; right are 0 (SHRINK_DEFAULT) and 1 (SHRINK_ABORT)" in str(error), error
    else:
        raise AssertionError("flags that there are not were taken")
    shrunk.barrier().wait()


def shrinks_a_group(rank: int) -> None:
    survive(rank, _shrink_a_group)


def _abort_and_shrink(rank: int) -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)  # the rank left out calls nothing
    dist.shrink_group([LEFT_OUT], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert "SHRINK_ABORT" in str(error), error
    else:
        raise AssertionError("a call that nobody answers has ended well")
    expect(total(rank), 13.0, "the shrunk world")
    dist.barrier()


def shrinks_while_a_call_waits(rank: int) -> None:
    meet(rank)
    survive(rank, _abort_and_shrink)


def shrinks_after_a_death(rank: int) -> None:
    meet(rank)
    if rank == LEFT_OUT:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            total(rank)
    except dist.DistBackendError as error:
        assert f"rank {LEFT_OUT}" in str(error), error
    dist.shrink_group([LEFT_OUT])
    expect(total(rank), 13.0, "the survivors")
    pair = dist.new_group([1, 2])
    if dist.get_rank() > 0:
        expect(total(rank, pair), 12.0, "a group made after the shrink")
    dist.barrier()


def ends_with_its_last_reference(rank: int) -> None:
    """And with a future, for whose callback its thread takes the interpreter's lock."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    group, told = backend.shrink([]), threading.Event()
    others = store().clone()
    if rank == 0:  # the other one calls nothing
        group.allreduce([torch.ones(4)]).get_future().then(lambda done: told.set())
        del group
        assert told.wait(60), "its future has not ended"
        others.set("the group has ended", "")
    others.wait(["the group has ended"])


def connections_to(port: int) -> int:
    """TCP connections of this host whose other end is at `port`."""
    rows = []
    for table in ("tcp", "tcp6"):
        rows += pathlib.Path("/proc/self/net", table).read_text().splitlines()[1:]
    # sl local_address rem_address st ...; 01: established
    columns = (row.split() for row in rows)
    return sum(c[2].endswith(f":{port:04X}") and c[3] == "01" for c in columns)


def start_at_a_store_of_pytorch(rank: int) -> None:
    size, first = dist.get_world_size(), store()
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False) if rank == 0 else None
    if rank == 0:
        first.set("port", str(server.port))
    port = int(first.get("port"))
    own = dist.TCPStore("127.0.0.1", port, None, False)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("weft", store=own, rank=rank, world_size=size)
    expect(total(rank), float(2 ** size - 1), "sum")
    dist.barrier()
    # The server's process has one for itself. The kernel's table may miss a connection, or have it twice,
    # where others of this host come and go while it is read.
    deadline = time.monotonic() + installed.LIMIT / 2
    while (found := connections_to(port)) != size + 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    expect(found, size + 1, "connections to the store")
    dist.barrier()
    dist.destroy_process_group()
    # The server ends last.
    own.add("ended", 1)
    if rank == 0:
        deadline = time.monotonic() + installed.LIMIT
        while own.add("ended", 0) < size and time.monotonic() < deadline:
            time.sleep(0.01)


class Groups(unittest.TestCase):
    def test_of_a_small_job_need_one_connection_a_rank_to_pytorchs_store(self):
        # 16: of one more than 8, the first all-reduce goes to ranks that are no neighbours in a ring.
        installed.fork_ranks(16, start_at_a_store_of_pytorch)

    def test_have_the_options_that_they_are_given_or_say_why_not(self):
        installed.fork_ranks(4, has_options_of_its_own, dying=LEFT_OUT)

    def test_split(self):
        installed.fork_ranks(4, splits)

    def test_merge(self):
        installed.fork_ranks(4, merges)

    def test_of_a_shrunk_world_take_its_ranks(self):
        installed.fork_ranks(4, shrinks_the_world, dying=LEFT_OUT)

    def test_shrink_beside_their_parent(self):
        installed.fork_ranks(4, shrinks_a_group, dying=LEFT_OUT)

    def test_end_with_their_last_reference(self):
        # The links that the unfinished call was on go with it, and other groups with these.
        installed.fork_ranks(2, ends_with_its_last_reference, ends_well=False)

    def test_shrink_with_abort_while_a_call_waits_for_a_rank(self):
        installed.fork_ranks(4, shrinks_while_a_call_waits, dying=LEFT_OUT)

    def test_shrink_after_a_death(self):
        installed.fork_ranks(4, shrinks_after_a_death, dying=LEFT_OUT)


if __name__ == "__main__":
    unittest.main()
