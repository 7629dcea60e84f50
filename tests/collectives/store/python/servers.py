"""What the tests of the store's Python package share: servers, and an interpreter with PyTorch."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

# A bound on hangs; everything takes milliseconds.
PATIENCE = 60.0
BIN = pathlib.Path(os.environ["WEFT_BIN"])
PACKAGE = BIN.parent / "python"
sys.path[:0] = [str(PACKAGE), str(pathlib.Path(__file__).resolve().parents[3])]
from ports import free_port  # noqa: E402


def skip(reason: str):
    print(f"skipped: {reason}")
    sys.exit(77)


def with_torch() -> None:
    """Goes on in an interpreter that has PyTorch, or skips the test."""
    try:
        import torch  # noqa: F401, PLC0415
        return
    except ImportError:
        pass
    python = os.environ.get("WEFT_BENCH_PYTHON")
    if python is None:
        python = pathlib.Path(os.environ["WEFT_SOURCE"]) / ".deps/bench-venv/bin/python"
    if not pathlib.Path(python).exists() or os.environ.get("WEFT_TEST_AGAIN"):
        skip("no Python that has PyTorch (tools/dev bench makes one in .deps/bench-venv)")
    os.environ["WEFT_TEST_AGAIN"] = "1"
    os.execv(python, [str(python), "-B", *sys.argv])


class Redis:
    """A Redis server of the test's own, or None where there is none."""

    @staticmethod
    def start():
        program = shutil.which("redis-server")
        for _ in range(10 if program else 0):
            port = free_port()  # somebody may take it in between: then again
            process = subprocess.Popen(
                [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                 "--appendonly", "no"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if Redis._answers(process, port):
                return Redis(process, port)
        return None

    def __init__(self, process: subprocess.Popen, port: int):
        self.process = process
        self.port = port

    @staticmethod
    def _answers(process: subprocess.Popen, port: int) -> bool:
        end = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < end:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
                    client.sendall(b"INFO server\r\n")
                    # Ours, and not somebody's who was there before.
                    if f"process_id:{process.pid}".encode() in client.recv(1 << 16):
                        return True
            except OSError:
                pass
            time.sleep(0.01)
        process.kill()
        process.wait()
        return False

    def stop(self):
        self.process.kill()
        self.process.wait()
