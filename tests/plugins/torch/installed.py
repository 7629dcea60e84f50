"""What the tests of Python's package weft share: they run as a user's programs do, in an
interpreter that has PyTorch and into which the wheel was installed.

Import this module first: where it is not so yet it makes the wheel of this build, installs that
into a folder of the build, where other tests find it, and starts the test again, or skips it.
Afterwards `fork_ranks` runs a function in several processes, and `programs` runs programs.
"""

import contextlib
import fcntl
import hashlib
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import unittest

SOURCE = pathlib.Path(os.environ["WEFT_SOURCE"])
sys.path.append(str(SOURCE / "tests"))
from ports import free_port  # noqa: E402
BUILD = pathlib.Path(os.environ["WEFT_BIN"]).parent
LIMIT = 240.0  # seconds; a bound on hangs alone


# Of tests that take minutes, for which CI has no time.
takes_long = unittest.skipUnless(os.environ.get("WEFT_TEST_LONG"), "takes minutes: WEFT_TEST_LONG=1")


def skip(reason: str):
    print(f"skipped: {reason}")
    sys.exit(77)


def _python() -> pathlib.Path:
    named = os.environ.get("WEFT_BENCH_PYTHON")
    dependencies = pathlib.Path(os.environ.get("WEFT_DEPS_DIR", SOURCE / ".deps"))
    python = pathlib.Path(named) if named else dependencies / "bench-venv/bin/python"
    if not python.exists():
        skip("no Python that has PyTorch: tools/dev test torch installs one")
    return python


def make_wheel(folder: pathlib.Path) -> pathlib.Path:
    sys.path.insert(0, str(SOURCE / "tools/dev.d"))
    import wheel

    if not (BUILD / "python/weft/lib/libweft_torch.so").exists():
        skip("this build has no libweft_torch.so")
    return wheel.pack(BUILD, folder)


def install(wheel: pathlib.Path, target: pathlib.Path, python: pathlib.Path) -> None:
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
                    "--disable-pip-version-check", "--target", target, wheel], check=True)


SANITIZER = os.environ.get("WEFT_SANITIZER", "")
_SANITIZER_LIBRARIES = {"address,undefined": ["libasan.so", "libstdc++.so.6"],
                        "thread": ["libtsan.so"]}
# Of tests that measure memory, which a sanitizer keeps for itself.
needs_plain_memory = unittest.skipIf(SANITIZER, "a sanitizer keeps memory that was freed")


def _sanitizer(reports: pathlib.Path) -> dict[str, str]:
    """What lets an interpreter that is not instrumented load a library that is. Reports go into the
    folder `reports`, a file a process: of a process that ends badly anyway, or whose exit status
    nobody reads, they would be lost otherwise."""
    wanted = _SANITIZER_LIBRARIES.get(SANITIZER, [])
    if not wanted:
        return {}
    paths = [subprocess.run(["g++", f"-print-file-name={name}"], check=True, text=True,
                            capture_output=True).stdout.strip() for name in wanted]
    suppressions = SOURCE / "tests/plugins/torch/tsan_suppressions.txt"
    log = f"log_path={reports}/report"
    return {"LD_PRELOAD": " ".join(paths),
            # The interpreter and PyTorch keep much until their end; TSan takes mutexes for destroyed
            # whose memory PyTorch uses again, and would refuse threads in forked children.
            "ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=1:{log}",
            "UBSAN_OPTIONS": f"print_stacktrace=1:{log}",
            "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_mutex_bugs=0:die_after_fork=0:"
                            f"suppressions={suppressions}:{log}"}


def _fail_for(reports: pathlib.Path) -> bool:
    """Prints what sanitizers found, in whichever process of the test."""
    found = sorted(reports.glob("report.*"))
    for path in found:
        print(f"---- {path.name}, of a process of this test:\n{path.read_text(errors='replace')}")
    return bool(found)


def _wheel_key(python: pathlib.Path) -> str:
    """Of what a wheel of this build is made of, and of who installs it."""
    made_of = [*sorted((BUILD / "python").rglob("*")), *sorted((BUILD / "lib").glob("*.so")),
               SOURCE / "tools/dev.d/wheel.py", SOURCE / "plugins/torch/python/README.md",
               SOURCE / "LICENSE"]
    states = [(path, path.stat()) for path in made_of
              if path.is_file() and "__pycache__" not in path.parts]
    text = "\n".join([str(python), *(f"{path} {state.st_mtime_ns} {state.st_size}"
                                     for path, state in states)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _flock(path: pathlib.Path, kind: int):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _site(python: pathlib.Path):
    """The folder into which the first test that wants it installs the wheel of this build."""
    sites = BUILD / "torch-sites"
    sites.mkdir(exist_ok=True)
    with contextlib.ExitStack() as user:
        with _flock(sites, fcntl.LOCK_EX):
            site = sites / _wheel_key(python)
            if not site.exists():
                for old in list(sites.iterdir()):  # of earlier builds
                    with (contextlib.suppress(BlockingIOError),  # a test has it
                          _flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)):
                        shutil.rmtree(old)
                with tempfile.TemporaryDirectory(prefix="weft-wheel-", dir=sites) as folder:
                    fresh = pathlib.Path(folder, "site")
                    install(make_wheel(pathlib.Path(folder)), fresh, python)
                    fresh.rename(site)
            user.enter_context(_flock(site, fcntl.LOCK_SH))
        yield site


def _start_again() -> int:
    python = _python()
    with (_site(python) as target,
          tempfile.TemporaryDirectory(prefix="weft-torch-") as folder):
        reports = pathlib.Path(folder, "reports")
        reports.mkdir()
        environment = {
            **os.environ, "WEFT_TEST_SITE": str(target), "PYTHONPATH": str(target),
            "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "WEFT_TORCH_PYTHON": str(python), **_sanitizer(reports)}
        status = subprocess.run([python, *sys.argv], env=environment).returncode
        return 1 if _fail_for(reports) else status


if "WEFT_TEST_SITE" not in os.environ:
    sys.exit(_start_again())

SITE = pathlib.Path(os.environ["WEFT_TEST_SITE"])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)


class RankError(AssertionError):
    pass


def fork_ranks(size: int, body, *arguments, backend: str = "weft", limit: float = LIMIT,
               dying: int | None = None, ends_well: bool = True) -> list:
    """body(rank, *arguments) in `size` processes that have joined a default group; its results by
    rank. RankError with the tracebacks of all ranks that failed, but for one that is to die. Where
    none dies and the job `ends_well`, all meet at the end and destroy the group. The ranks are
    forked from this process, which has PyTorch loaded but has done nothing with it."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="weft-ranks-") as folder:
        ranks = []
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_run_rank, args=(there, folder, rank, size, backend, body, arguments,
                                         ends_well and dying is None))
            process.start()
            there.close()
            ranks.append((process, here))
        results, problems = [], []
        for rank, (process, pipe) in enumerate(ranks):
            good, value = False, None
            try:
                if pipe.poll(limit):
                    good, value = pipe.recv()
                else:
                    value = f"gave no result within {limit:.0f} s"
            except EOFError:
                process.join(limit)
                value = f"died with exit code {process.exitcode}"
            results.append(value)
            if not good and rank != dying:
                problems.append(f"rank {rank}: {value}")
        for process, _ in ranks:
            process.join(0 if problems else limit)
            if process.is_alive():
                process.kill()
                process.join()
                if not problems:
                    problems.append("a rank did not end")
    if problems:
        raise RankError("\n".join(problems))
    return results


def _run_rank(pipe, folder, rank, size, backend, body, arguments, ends_well) -> None:
    try:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank,
                                world_size=size)
        value = body(rank, *arguments)
        if dist.is_initialized() and ends_well:
            dist.barrier()
            if backend != "gloo":  # as in LEAVE
                dist.destroy_process_group()
        pipe.send((True, value))
    except BaseException:  # noqa: BLE001 -- the parent tells
        pipe.send((False, traceback.format_exc()))
        raise


# The last lines of programs that run over ours and, to compare, over Gloo, whose threads can end a
# process by std::terminate ("without an active exception") while a group or the interpreter ends, and
# which takes a peer that has ended for a lost one: there all meet at the store, whose server may be
# rank 0's, and end at once.
LEAVE = """
import os, sys, time
group = torch.distributed
if group.get_backend() == "gloo":
    sys.stdout.flush()
    store, others = group.distributed_c10d._get_default_store(), group.get_world_size() - 1
    store.add("done", 1)
    while store.add("done", 0) <= others:
        time.sleep(0.01)
    if group.get_rank() == 0:
        while store.add("left", 0) < others:
            time.sleep(0.01)
    else:
        store.add("left", 1)
    os._exit(0)
group.destroy_process_group()
"""


class Program:
    """One rank of a job of programs; use `programs`."""

    def __init__(self, process, output):
        self.process = process
        self._output = output

    def wait(self, limit: float = LIMIT) -> int:
        """The exit status, negative for a signal; the test fails where it does not end."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RankError(f"it hangs; it printed:\n{self.output()}") from None

    def output(self) -> str:
        self._output.flush()
        return pathlib.Path(self._output.name).read_text(errors="replace")

    def wait_for_line(self, line: str) -> None:
        """Until it has printed `line`; the test fails where it ends or hangs without."""
        deadline = time.monotonic() + LIMIT
        while line not in self.output().splitlines():
            if self.process.poll() is not None:
                raise RankError(f"it ended before {line!r}:\n{self.output()}")
            if time.monotonic() > deadline:
                raise RankError(f"no {line!r} within {LIMIT:.0f} s:\n{self.output()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)


@contextlib.contextmanager
def programs(size: int, text: str, **environment):
    """`size` processes of the program `text`, with torchrun's environment, the init_method of a
    store that outlives each of them in STORE, and a pipe to read from; what still runs at the end
    is killed."""
    with tempfile.TemporaryDirectory(prefix="weft-program-") as folder:
        script = pathlib.Path(folder, "program.py")
        script.write_text(text)
        port = free_port()
        ranks = []
        for rank in range(size):
            output = open(f"{folder}/{rank}.log", "w+")  # noqa: SIM115 -- closed with the process
            process = subprocess.Popen(
                [sys.executable, "-u", script], stdin=subprocess.PIPE, stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size),
                     "STORE": f"file://{folder}/store",
                     "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port), **environment})
            ranks.append(Program(process, output))
        try:
            yield ranks
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()
                rank.process.stdin.close()
                rank._output.close()
