"""What tests of processes share: where the programs are, and who is still alive."""

import os
import pathlib
import time

BIN = pathlib.Path(os.environ["WEFT_BIN"])


def program(name: str) -> str:
    return str(BIN / name)


def environment(pid: int) -> dict[bytes, bytes]:
    try:
        data = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(part.split(b"=", 1) for part in data.split(b"\0") if b"=" in part)


def is_zombie(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def of_job(job: str) -> list[int]:
    """Every process that runs and has this WEFT_JOB_ID in its environment."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and environment(int(entry)).get(b"WEFT_JOB_ID") == job.encode():
            if not is_zombie(int(entry)):
                found.append(int(entry))
    return found


def until(condition, seconds: float = 30.0, what: str | None = None):
    """Waits for what will come; the bound is for a broken program only. `what`: in its error's words."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"nothing within {seconds} s of {what or f'what {condition} waits for'}")
        time.sleep(0.02)
