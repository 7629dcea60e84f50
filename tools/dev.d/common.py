"""What every sub-command needs: where things are, how to run a program, how to speak."""

import os
import pathlib
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
DEPS = pathlib.Path(os.environ.get("WEFT_DEPS_DIR", ROOT / ".deps"))
# Beside ccache's, so that every clone on a machine profits.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "weft"
PRESETS = ("release", "debug", "asan", "tsan", "tsan-torch", "cuda")


class Failure(Exception):
    """Ends the command with its text and exit status 1."""


def say(text: str) -> None:
    print(f"dev: {text}", file=sys.stderr, flush=True)


def execute(command: list, **kwargs) -> None:
    """Runs a program with our output; a Failure when it does not exit 0."""
    command = [str(word) for word in command]
    try:
        status = subprocess.run(command, cwd=kwargs.pop("cwd", ROOT), **kwargs).returncode
    except FileNotFoundError:
        raise Failure(f"there is no program {command[0]}") from None
    if status != 0:
        raise Failure(f"`{shlex.join(command)}` exited with status {status}")


def output(command: list, **kwargs) -> str:
    """The program's standard output; a Failure with its standard error when it does not exit 0."""
    done = subprocess.run([str(word) for word in command], cwd=kwargs.pop("cwd", ROOT),
                          capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        raise Failure(f"`{shlex.join(map(str, command))}` exited with status {done.returncode}: "
                      f"{done.stderr.strip()}")
    return done.stdout


def tracked(*patterns: str) -> list[str]:
    """Files that git knows and that are there, relative to the root."""
    names = output(["git", "ls-files", "-z", "--", *patterns]).split("\0")
    return sorted(name for name in names if name and (ROOT / name).is_file())


def jobs() -> int:
    """How many compilers may run: a file that includes LibTorch takes up to 2 GB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / 2)))


class Stopwatch:
    def __init__(self) -> None:
        self._start = time.monotonic()

    def __str__(self) -> str:
        seconds = time.monotonic() - self._start
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
