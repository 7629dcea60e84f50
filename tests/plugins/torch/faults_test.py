"""What each call says when a rank dies, calls something else, or gives another size or type: an
error on every rank that is left, which names the rank."""

import installed

import os
import signal
import unittest

import faults_table
import torch
import torch.distributed as dist

SIZE, CULPRIT = 3, 2


def tensors(count: int = SIZE) -> list[torch.Tensor]:
    return [torch.ones(4) for _ in range(count)]


def _gather() -> None:
    dist.gather(torch.ones(4), tensors() if dist.get_rank() == 0 else None)


CALLS = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
    "large_all_reduce": lambda: dist.all_reduce(torch.ones(1 << 20)),
    "reduce": lambda: dist.reduce(torch.ones(4), 0),
    "broadcast": lambda: dist.broadcast(torch.ones(4), CULPRIT),
    "all_gather": lambda: dist.all_gather(tensors(), torch.ones(4)),
    "all_gather_into_tensor":
        lambda: dist.all_gather_into_tensor(torch.ones(4 * SIZE), torch.ones(4)),
    "reduce_scatter_tensor":
        lambda: dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4 * SIZE)),
    "gather": _gather,
    "all_to_all": lambda: dist.all_to_all(tensors(), tensors()),
    "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3)),
    "barrier": lambda: dist.barrier(),
    "recv": lambda: dist.recv(torch.ones(4), CULPRIT),
    "all_gather_object": lambda: dist.all_gather_object([None] * SIZE, "text"),
    "sparse_all_reduce": lambda: dist.all_reduce(torch.ones(4).to_sparse()),
}


def said_by(call) -> str:
    try:
        call()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "nothing"


def all_know(call) -> str:
    """What this call says, or where its own part was done before the culprit died, the next one."""
    text = said_by(call)
    return text if text != "nothing" else said_by(dist.barrier)


def meet(rank: int) -> None:
    """Makes the links. The culprit returns when the others have: nothing of them is under way."""
    dist.all_reduce(torch.ones(4))
    store = dist.distributed_c10d._get_default_store()
    if rank == CULPRIT:
        store.wait([f"rank {r} has met" for r in range(SIZE) if r != CULPRIT])
    else:
        store.set(f"rank {rank} has met", "")


def after_a_death(rank: int, name: str) -> str:
    meet(rank)
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    return all_know(CALLS[name])


def after_a_difference(rank: int, kind: str) -> str:
    size = 5 if rank == CULPRIT and kind == "size" else 4
    dtype = torch.int32 if rank == CULPRIT and kind == "type" else torch.float32
    if rank == CULPRIT and kind.startswith("call"):
        return all_know(dist.barrier)
    if kind == "call beside a sparse one":
        return all_know(CALLS["sparse_all_reduce"])
    op = dist.ReduceOp.MAX if rank == CULPRIT and kind == "operator" else dist.ReduceOp.SUM
    return all_know(lambda: dist.all_reduce(torch.ones(size, dtype=dtype), op))


def after_a_departure(rank: int) -> str:
    meet(rank)
    if rank == CULPRIT:
        dist.destroy_process_group()
        return ""
    return all_know(CALLS["all_reduce"])


class Faults(unittest.TestCase):
    def check(self, said: list, what: str) -> None:
        for rank, text in enumerate(said):
            if rank == CULPRIT and text is None:
                continue
            self.assertRegex(text, rf"^DistBackendError: weft: .*rank {CULPRIT}\b", what)

    def test_a_difference_is_named_on_every_rank(self):
        for kind in ("size", "type", "operator", "call", "call beside a sparse one"):
            with self.subTest(kind):
                self.check(installed.fork_ranks(SIZE, after_a_difference, kind, dying=SIZE), kind)

    def test_a_rank_that_left_is_named(self):
        said = installed.fork_ranks(SIZE, after_a_departure, dying=SIZE)
        self.check(said[:CULPRIT], "after destroy_process_group on one rank")


class Table(unittest.TestCase):
    """Rows of the table in docs/torch.md, which faults_table.py prints."""

    # Of groups in which nobody waits until the time is out: seconds that a busy machine may lose.
    AMPLE = faults_table.HANG / 2

    def check(self, fault: str, call: str, timeout: float = AMPLE) -> None:
        for outcome in faults_table.outcomes("weft", fault, call, timeout):
            self.assertTrue(outcome.names(faults_table.CULPRIT), outcome)

    def test_a_killed_rank_is_named(self):
        self.check("killed", "all_reduce")

    def test_a_rank_that_raises_is_named(self):
        self.check("raises and ends", "all_to_all_single")

    def test_a_rank_with_a_wrong_shape_is_named(self):
        for call in ("all_reduce", "all_reduce_coalesced", "sparse all_reduce",
                     "reduce_scatter_tensor", "reduce_scatter", "all_to_all", "send and recv"):
            self.check("wrong shape", call)

    def test_a_rank_in_another_call_is_named(self):
        self.check("in another call", "all_gather_object")

    def test_a_rank_with_a_wrong_type_is_named(self):
        for call in ("all_reduce", "all_reduce_coalesced", "sparse all_reduce", "broadcast",
                     "all_gather_into_tensor", "reduce_scatter", "all_to_all_single", "all_to_all"):
            self.check("wrong type", call)

    def test_a_stopped_rank_is_named(self):
        self.check("stopped", "all_reduce", faults_table.TIMEOUT)  # which ends the others' wait

    def test_a_slow_rank_fails_nothing(self):
        (fault,) = (name for name in faults_table.FAULTS if name.startswith("slow"))
        for outcome in faults_table.outcomes("weft", fault, "all_gather_into_tensor", self.AMPLE):
            self.assertIsNone(outcome.error)

    def test_a_peers_errors_are_cells_too(self):
        self.assertRegex(faults_table.cell("gloo", "killed", "all_reduce"), "error, names no rank")


def _add(name: str) -> None:
    def test(self):
        said = installed.fork_ranks(SIZE, after_a_death, name, dying=CULPRIT)
        self.check(said[:CULPRIT], name)

    setattr(Faults, f"test_{name}_names_the_rank_that_died", test)


for _name in CALLS:
    _add(_name)

if __name__ == "__main__":
    unittest.main()
