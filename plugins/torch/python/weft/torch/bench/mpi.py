"""The same collectives by mpi4py over Open MPI, where both are installed.

As a program, which mpirun starts: `python -m weft.torch.bench.mpi ROUNDS SECONDS OPERATION:BYTES...`.
It is a job of its own, beside which nothing runs, and not in turns with ours.
"""

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

LIMIT = 600.0  # seconds for a job


def why_not() -> str | None:
    """What is missing; None: it can be measured."""
    for module in ("mpi4py", "numpy"):
        if importlib.util.find_spec(module) is None:
            return f"there is no {module} in this Python"
    if shutil.which("mpirun") is None:
        return "there is no mpirun"
    try:
        version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True,
                                 timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"mpirun does not run: {error}"
    if "Open MPI" not in version:
        return "mpirun is not Open MPI's"
    return None


def measure(ranks: int, cases: list[tuple[str, int]], rounds: int,
            seconds: float) -> dict[tuple[str, int], float]:
    """Seconds a call, of each (operation, bytes). RuntimeError where the job fails."""
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), sys.executable, "-m",
               "weft.torch.bench.mpi", str(rounds), str(seconds)]
    command += [f"{operation}:{size}" for operation, size in cases]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"mpirun exited with status {done.returncode}: {done.stderr[-2000:]}")
    rows = (json.loads(line) for line in done.stdout.splitlines())
    return {(operation, size): median for operation, size, median in rows}


def _prepared(world, operation: str, size: int):
    import numpy
    from mpi4py import MPI

    ranks = world.Get_size()
    part = numpy.ones(max(size // 4 // ranks, 1), numpy.float32)
    whole = numpy.ones(part.size * ranks, numpy.float32)
    other = numpy.empty_like(whole)
    return {
        "all_reduce": lambda: world.Allreduce(MPI.IN_PLACE, whole),
        "all_gather_into_tensor": lambda: world.Allgather(part, whole),
        "reduce_scatter_tensor": lambda: world.Reduce_scatter_block(whole, part),
        "broadcast": lambda: world.Bcast(whole, 0),
        "all_to_all_single": lambda: world.Alltoall(whole, other),
        "barrier": world.Barrier,
    }[operation]


def _run() -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rounds, seconds = int(sys.argv[1]), float(sys.argv[2])

    def slowest(call, calls: int) -> float:
        world.Barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return world.allreduce((time.perf_counter() - start) / calls, MPI.MAX)

    for case in sys.argv[3:]:
        operation, size = case.split(":")
        call = _prepared(world, operation, int(size))
        call()
        calls = max(1, min(1000, int(seconds / max(slowest(call, 1), 1e-7))))
        median = statistics.median(slowest(call, calls) for _ in range(rounds))
        if world.Get_rank() == 0:
            print(json.dumps([operation, int(size), median]), flush=True)


if __name__ == "__main__":
    _run()
