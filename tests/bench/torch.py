"""PyTorch's collectives, start and training steps on the backend weft, beside Gloo (and mpi4py).

Runs `python -m weft.torch.bench` of this build and turns what it prints into rows. Further arguments go to it, such
as --quick or --parts overhead start. Of the part overhead the peer is the C++ core below Python; of steps there is a
row beside a step whose communication is removed, and one of the exposed communication.
"""
# needs: torch
# wants: openmpi

import json
import os
import pathlib
import subprocess
import sys


def size_text(size: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def print_row(measured: dict, what: str, ours: float, peer: float, peer_name: str) -> None:
    """`ours` and `peer` in microseconds."""
    size = f"{size_text(measured['bytes'])}, " if measured["bytes"] else ""
    print(json.dumps({"name": "torch", "case": f"{what}, {size}{measured['ranks']} ranks",
                      "ours": round(ours, 3), "peer": round(peer, 3), "peer_name": peer_name,
                      "unit": "us", "ratio": round(peer / ours, 3) if ours > 0 else 0,
                      "repeats": measured["rounds"]}), flush=True)


def print_rows(measured: dict) -> None:
    what, ours = measured["operation"], measured["weft_us"]
    if measured["gloo_us"] is not None:
        print_row(measured, what, ours, measured["gloo_us"], "gloo")
    for name, peer_name in (("mpi4py_us", "mpi4py"), ("core_us", "C++ core"),
                            ("removed_us", "communication removed")):
        if name in measured:
            print_row(measured, what, ours, measured[name], peer_name)
    if "weft_cpu_us" in measured:
        print_row(measured, f"{what}: init alone", measured["init_us"], measured["gloo_init_us"], "gloo")
        for name in ("gloo", "fake"):
            print_row(measured, f"{what}: processor time of a rank", measured["weft_cpu_us"],
                      measured[f"{name}_cpu_us"], name)
        print_row(measured, what, ours, measured["meeting_alone_us"], "a meeting at the store alone")
    if "exposed_weft_us" in measured:
        print_row(measured, f"{what}: exposed communication", measured["exposed_weft_us"],
                  measured["exposed_gloo_us"], "gloo")
        for name in ("recovered", "recovered at least", "recovered at most", "recovered by minima"):
            if name in measured:
                print(json.dumps({"name": "torch", "case": f"{what}: {name}, {measured['ranks']} ranks",
                                  "ours": round(measured[name], 3), "peer": 1, "unit": "share",
                                  "peer_name": "communication removed",
                                  "ratio": round(measured[name], 3),
                                  "repeats": measured["rounds"]}), flush=True)


def main() -> None:
    package = pathlib.Path(os.environ["WEFT_BIN"]).parent / "python"
    if not (package / "weft/lib/libweft_torch.so").exists():
        sys.exit(f"{package} holds no libweft_torch.so: the build has no LibTorch")
    environment = {**os.environ, "PYTHONPATH": str(package), "CUDA_VISIBLE_DEVICES": "",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    command = [os.environ["WEFT_BENCH_PYTHON"], "-m", "weft.torch.bench", "--json", *sys.argv[1:]]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout:
            print_rows(json.loads(line))
    if bench.returncode != 0:
        sys.exit(f"python -m weft.torch.bench exited with status {bench.returncode}")


if __name__ == "__main__":
    main()
