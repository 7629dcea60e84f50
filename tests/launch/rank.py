"""One rank as a launcher's child: runs a program and tells what became of it.

    rank.py FOLDER RANKS RANK_VARIABLE KILLED METRICS PROGRAM [ARGUMENT...]

What the program of rank K writes goes to FOLDER/rank-K.log; its status, once it has ended, to
FOLDER/ended-K; 124: it hung, and was killed. KILLED: the rank whose program is killed by SIGKILL
once METRICS has two lines; -1: none. The process itself ends after the programs of all ranks have,
so that no launcher ends a rank before that rank has seen by itself that another one is gone.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import time

PATIENCE = 120.0  # seconds, for a program that hangs
PR_SET_PDEATHSIG = 1


def lines(path: pathlib.Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def run(log: pathlib.Path, killed: bool, metrics: pathlib.Path, command: list[str], end: float) -> int:
    libc = ctypes.CDLL(None)
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                                 preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        while child.poll() is None:
            if time.monotonic() > end:
                child.kill()
                child.wait()
                file.write(b"rank.py: killed because it hung\n")
                return 124
            if killed and lines(metrics) >= 2:
                child.kill()
            time.sleep(0.01)
    return child.returncode


def main() -> int:
    folder, ranks = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    rank, killed = int(os.environ[sys.argv[3]]), int(sys.argv[4])
    end = time.monotonic() + PATIENCE
    status = run(folder / f"rank-{rank}.log", rank == killed, pathlib.Path(sys.argv[5]), sys.argv[6:],
                 end)
    fresh = folder / f"ending-{rank}"
    fresh.write_text(str(status))
    fresh.rename(folder / f"ended-{rank}")
    while not all((folder / f"ended-{other}").exists() for other in range(ranks)):
        if time.monotonic() > end + 30:
            return 125
        time.sleep(0.01)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(main())
