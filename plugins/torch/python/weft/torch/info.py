"""python -m weft.torch.info: what the backend finds on this machine; exit status 1 where it cannot
work."""

import argparse
import json
import os
import pathlib
import platform
import sys

import torch

import weft
from weft.torch import _library

_YAMA = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
_DEVICES = pathlib.Path("/sys/class/infiniband")
_MODULES = {"verbs": "libweft-verbs.so", "ucx": "libweft-ucx.so"}


def collect() -> dict[str, object]:
    """Everything that main() prints; texts, numbers, lists and objects of them."""
    found: dict[str, object] = {
        "weft": weft.__version__,
        "PyTorch": torch.__version__,
        "Python": platform.python_version(),
        "library": str(_library.library()),
        "problem": "",
    }
    try:
        settings = _library.operators().settings()
    except (ImportError, RuntimeError) as error:  # of the library; of a setting that is wrong
        found["problem"] = str(error)
        return found
    found["backend"] = "weft, for tensors in host memory (cpu)"
    found["stores"] = ["weft://", "redis://"]
    found["torchrun"] = "--rdzv-backend=weft"
    found["cores"] = len(os.sched_getaffinity(0))
    found["reads peers' memory"] = _reads_peers_memory()
    folder = _library.library().parent
    found["transports"] = ["shm", "tcp", "multipath"] + [
        name for name, module in _MODULES.items() if (folder / module).exists()]
    found["RDMA devices"] = (sorted(path.name for path in _DEVICES.iterdir())
                             if _DEVICES.is_dir() else [])
    found["settings"] = {name: f"{value} ({origin})" for name, value, origin, _
                         in settings if origin not in ("", "default")}
    return found


def _reads_peers_memory() -> str:
    """Whether large messages between processes of a host are copied once, or twice."""
    if not _YAMA.exists() or _YAMA.read_text().strip() == "0" or os.geteuid() == 0:
        return "yes: one copy between processes of this host"
    return (f"no: {_YAMA} is {_YAMA.read_text().strip()}, so that messages are copied twice; "
            "0 allows one copy between processes of one user")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.torch.info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object, for programs")
    options = parser.parse_args(arguments)
    found = collect()
    if options.json:
        print(json.dumps(found))
        return 1 if found["problem"] else 0
    for name, value in found.items():
        if isinstance(value, dict):
            value = "; ".join(f"{key} = {text}" for key, text in value.items()) or "all at defaults"
        elif isinstance(value, list):
            value = ", ".join(value) or "none"
        if value != "":
            print(f"{name + ':':22}{value}")
    return 1 if found["problem"] else 0


if __name__ == "__main__":
    sys.exit(main())
