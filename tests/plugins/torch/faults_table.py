"""Prints what Gloo and what ours do where one of three ranks misbehaves in a call, as a table of
docs/torch.md: WEFT_BIN=... WEFT_SOURCE=... python3 tests/plugins/torch/faults_table.py [--calls NAME...]
[--faults NAME...] [--backends NAME...]

A cell is what the other ranks see: whether the call and the barrier after it end, after how long,
and whether the error names the rank.
"""

import installed

import argparse
import contextlib
import dataclasses
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

SIZE, CULPRIT = 3, 2
TIMEOUT = 5.0  # seconds: of the group, so that waits end
SLOW = 1.0  # seconds
HANG = 60.0  # seconds after which a rank that has said nothing hangs
COUNT = 4


def _all_reduce(count: int, dtype) -> None:
    dist.all_reduce(torch.ones(count, dtype=dtype))


def _broadcast(count: int, dtype) -> None:
    dist.broadcast(torch.ones(count, dtype=dtype), CULPRIT)


def _all_gather(count: int, dtype) -> None:
    dist.all_gather_into_tensor(torch.ones(count * SIZE, dtype=dtype),
                                torch.ones(count, dtype=dtype))


def _reduce_scatter(count: int, dtype) -> None:
    dist.reduce_scatter_tensor(torch.ones(count, dtype=dtype),
                               torch.ones(count * SIZE, dtype=dtype))


def _all_to_all(count: int, dtype) -> None:
    dist.all_to_all_single(torch.ones(count * SIZE, dtype=dtype),
                           torch.ones(count * SIZE, dtype=dtype))


def _tensors(count: int, dtype) -> list[torch.Tensor]:
    return [torch.ones(count, dtype=dtype) for _ in range(SIZE)]


def _reduce(count: int, dtype) -> None:
    dist.reduce(torch.ones(count, dtype=dtype), 0)


def _all_gather_list(count: int, dtype) -> None:
    dist.all_gather(_tensors(count, dtype), torch.ones(count, dtype=dtype))


def _gather(count: int, dtype) -> None:
    dist.gather(torch.ones(count, dtype=dtype),
                _tensors(count, dtype) if dist.get_rank() == 0 else None)


def _scatter(count: int, dtype) -> None:
    dist.scatter(torch.ones(count, dtype=dtype),
                 _tensors(count, dtype) if dist.get_rank() == CULPRIT else None, CULPRIT)


def _reduce_scatter_list(count: int, dtype) -> None:
    dist.reduce_scatter(torch.ones(count, dtype=dtype), _tensors(count, dtype))


def _all_reduce_coalesced(count: int, dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch's, of all lists of all-reduces
        dist.all_reduce_coalesced(_tensors(count, dtype))


def _all_to_all_list(count: int, dtype) -> None:
    dist.all_to_all(_tensors(count, dtype), _tensors(count, dtype))


def _sparse_all_reduce(count: int, dtype) -> None:
    dist.all_reduce(torch.ones(count, dtype=dtype).to_sparse())


def _send_and_recv(count: int, dtype) -> None:
    """The culprit sends to each of the others."""
    if dist.get_rank() != CULPRIT:
        return dist.recv(torch.empty(count, dtype=dtype), CULPRIT)
    for rank in range(SIZE):
        if rank != CULPRIT:
            dist.send(torch.ones(count, dtype=dtype), rank)


def _all_gather_object(count: int, dtype) -> None:
    dist.all_gather_object([None] * SIZE, torch.ones(count, dtype=dtype).tolist())


def _barrier(_count: int, _dtype) -> None:
    dist.barrier()


CALLS = {"all_reduce": _all_reduce, "all_reduce_coalesced": _all_reduce_coalesced,
         "sparse all_reduce": _sparse_all_reduce, "reduce": _reduce,
         "broadcast": _broadcast, "all_gather_into_tensor": _all_gather,
         "all_gather": _all_gather_list, "gather": _gather, "scatter": _scatter,
         "reduce_scatter_tensor": _reduce_scatter, "reduce_scatter": _reduce_scatter_list,
         "all_to_all_single": _all_to_all, "all_to_all": _all_to_all_list,
         "all_gather_object": _all_gather_object, "send and recv": _send_and_recv,
         "barrier": _barrier}


def _killed(_call) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stopped(_call) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _slow(call) -> None:
    time.sleep(SLOW)
    call(COUNT, torch.float32)


def _another_call(call) -> None:
    (_all_reduce if call is _barrier else _barrier)(COUNT, torch.float32)


def _wrong_shape(call) -> None:
    call(COUNT + 1, torch.float32)


def _wrong_type(call) -> None:
    call(COUNT, torch.int32)  # as large


def _raises(_call) -> None:
    raise KeyError("the user's fault")


FAULTS = {"killed": _killed, "stopped": _stopped, f"slow by {SLOW:g} s": _slow,
          "in another call": _another_call, "wrong shape": _wrong_shape,
          "wrong type": _wrong_type, "raises and ends": _raises}
_OF_TENSORS = ("wrong shape", "wrong type")
_WITHOUT_TENSORS = ("barrier", "all_gather_object")  # objects may differ


@dataclasses.dataclass
class Outcome:
    """Of one rank."""

    error: str | None  # None: the call and a barrier ended well
    seconds: float  # from the call; infinite where the rank hangs
    in_call: bool = True  # and not in the barrier after it

    def names(self, rank: int) -> bool:
        return self.error is not None and re.search(rf"\brank \[?{rank}\b", self.error) is not None

    def text(self) -> str:
        if self.seconds == float("inf"):
            return "hangs"
        if self.error is None:
            return f"ends well ({self.seconds:.1f} s)" if self.seconds >= 0.1 else "ends well"
        where = "" if self.in_call else "no error, but in the next call "
        named = f"names rank {CULPRIT}" if self.names(CULPRIT) else "names no rank"
        return f"{where}error, {named} ({self.seconds:.1f} s)"


def outcomes(backend: str, fault: str, call: str, timeout: float = TIMEOUT) -> list[Outcome]:
    """What the ranks but the culprit see, in a group with that timeout in seconds."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="weft-faults-") as folder:
        processes, pipes = [], []
        for rank in range(SIZE):
            here, there = context.Pipe()
            process = context.Process(target=_run_rank,
                                      args=(there, folder, rank, backend, fault, call, timeout))
            process.start()
            there.close()
            processes.append(process)
            pipes.append(here)
        try:
            seen = []
            for rank in range(SIZE):
                if rank == CULPRIT:
                    continue
                if not pipes[rank].poll(HANG):
                    seen.append(Outcome(None, float("inf")))
                    continue
                try:
                    seen.append(pipes[rank].recv())
                except EOFError:
                    processes[rank].join()
                    seen.append(Outcome(f"the process ended with {processes[rank].exitcode}", 0.0))
        finally:
            for process in processes:
                process.kill()
                process.join()
    return seen


def _run_rank(pipe, folder, rank, backend, fault, call, timeout) -> None:
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank,
                            world_size=SIZE, timeout=timedelta(seconds=timeout))
    dist.all_reduce(torch.ones(COUNT))
    # The culprit goes on when nothing of the others is under way.
    meeting = dist.FileStore(f"{folder}/meeting", SIZE)
    meeting.set_timeout(timedelta(seconds=HANG))
    meeting.set(f"{rank}", "")
    meeting.wait([f"{r}" for r in range(SIZE)])
    if rank == CULPRIT:
        if fault.startswith("raises"):
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115 -- the traceback is no news
            FAULTS[fault](CALLS[call])
        # Where its own call fails it stays, so that the others see the fault and not its end.
        with contextlib.suppress(RuntimeError):
            FAULTS[fault](CALLS[call])
            dist.barrier()
    else:
        pipe.send(_seen(CALLS[call]))
    pipe.poll(None)  # until the parent has heard everybody: this one's end must not end others


def _seen(call) -> Outcome:
    start = time.monotonic()
    in_call = True
    try:
        call(COUNT, torch.float32)
        in_call = False
        dist.barrier()
    except Exception as error:  # noqa: BLE001 -- whatever a backend raises
        return Outcome(f"{type(error).__name__}: {error}", time.monotonic() - start, in_call)
    return Outcome(None, time.monotonic() - start)


def cell(backend: str, fault: str, call: str) -> str:
    """The same text once where both ranks see the same."""
    return " / ".join(dict.fromkeys(outcome.text() for outcome in outcomes(backend, fault, call)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=list(CALLS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--backends", nargs="+", default=["gloo", "weft"])
    options = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(f"| rank {CULPRIT} of {SIZE} | call | {' | '.join(options.backends)} |")
    print("|---|---|" + "---|" * len(options.backends))
    for fault in options.faults:
        for call in options.calls:
            if call in _WITHOUT_TENSORS and fault in _OF_TENSORS:
                continue
            cells = [cell(backend, fault, call) for backend in options.backends]
            print(f"| {fault} | {call} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
