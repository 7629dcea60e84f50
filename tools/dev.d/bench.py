"""Measures Weft against a peer, in turns, in one run; without a name it lists the benchmarks.

A benchmark is a script tests/bench/<name>.py. It prints one JSON object a line on standard output, with the keys name,
case, ours, peer, peer_name, unit, ratio (above 1: ours is better) and repeats, which the table has, and others that
--json keeps; and its progress on standard error. Its docstring's first line says what it measures. A line
"# needs: torch openmpi" names the peers that must be installed first; one "# wants: oneccl" those that are installed
where they can be had, and left out where not. It is run with WEFT_BIN (the folder of the built programs), WEFT_SOURCE,
and where it needs torch with WEFT_BENCH_PYTHON, an interpreter with PyTorch and numpy, with oneCCL WEFT_BENCH_ONECCL.
Further arguments are passed to it.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import build
import setup
from common import ROOT, Failure, Stopwatch, say

FOLDER = ROOT / "tests/bench"
COLUMNS = ("name", "case", "ours", "peer", "peer_name", "unit", "ratio", "repeats")
PEERS = ("torch", "openmpi", "mpich", "oneccl", "iperf3", "ucx-utils", "roce")


def add_arguments(parser) -> None:
    parser.add_argument("name", nargs="?", help="a script of tests/bench, without .py")
    parser.add_argument("--json", metavar="FILE", help="write one object a row into FILE as well")
    parser.add_argument("arguments", nargs="*", metavar="ARG",
                        help="for the script; after --, where they begin with a dash")


def run(options) -> None:
    scripts = {path.stem: path for path in sorted(FOLDER.glob("*.py"))
               if not path.stem.startswith("_")}
    if options.name is None:
        for name, path in scripts.items():
            purpose = ast.get_docstring(ast.parse(path.read_text())) or ""
            print(f"{name:16} {purpose.partition(chr(10))[0]}")
        return
    if options.name not in scripts:
        raise Failure(f"there is no benchmark {options.name}; there are: "
                      f"{', '.join(scripts) or 'none'}")
    script = scripts[options.name]
    environment = install_peers(script)
    environment["WEFT_BIN"] = str(build.build("release") / "bin")
    environment["WEFT_SOURCE"] = str(ROOT)
    watch = Stopwatch()
    rows: list[dict] = []
    try:
        collect([sys.executable, "-B", script, *options.arguments], environment, rows)
    finally:  # what there was until it failed
        print_table(rows)
        if options.json:
            pathlib.Path(options.json).write_text("".join(json.dumps(row) + "\n" for row in rows))
    say(f"bench {options.name}: {len(rows)} rows ({watch})")


def collect(command: list, environment: dict, rows: list[dict]) -> None:
    """Runs the script; checks each row as it comes, and adds it to `rows`."""
    with subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment,
                          stdout=subprocess.PIPE, text=True) as script:
        for line in script.stdout:
            try:
                row = json.loads(line)
                rows.append({**{column: row[column] for column in COLUMNS}, **row})
            except (ValueError, KeyError, TypeError) as error:
                script.kill()
                raise Failure(f"the benchmark printed what is no row: {line.strip()} "
                              f"({error!r})") from None
    if script.returncode != 0:
        raise Failure(f"the benchmark exited with status {script.returncode}")


def print_table(rows: list[dict]) -> None:
    def text(value) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [COLUMNS] + [tuple(text(row[column]) for column in COLUMNS) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    for line in lines:
        padded = [word.ljust(width) for word, width in zip(line, widths)]
        print("  ".join(padded).rstrip(), flush=True)


def install_peers(script: pathlib.Path) -> dict:
    """What the script's lines "# needs:" and "# wants:" name; returns the environment for it."""
    environment = dict(os.environ)
    for line, must in (("needs", True), ("wants", False)):
        found = re.search(rf"^# {line}: *(.*)$", script.read_text(), re.MULTILINE)
        for peer in found.group(1).replace(",", " ").split() if found else []:
            if peer not in PEERS:
                raise Failure(f"{script.name} {line} {peer}, but only {', '.join(PEERS)} are known")
            try:
                install_peer(peer, environment)
            except Failure as failure:
                if must:
                    raise
                say(f"{peer} cannot be had, and is left out: {failure}")
    return environment


def install_peer(peer: str, environment: dict) -> None:
    if peer == "torch":
        environment["WEFT_BENCH_PYTHON"] = str(setup.install_torch())
    elif peer == "openmpi":
        setup.install_packages(["openmpi-bin", "libopenmpi-dev"])
    elif peer == "mpich":
        setup.install_packages(["mpich", "libmpich-dev"])
    elif peer == "oneccl":
        environment["WEFT_BENCH_ONECCL"] = str(setup.install_oneccl())
    elif peer == "roce":
        setup.install_packages(setup.ROCE_PACKAGES)
    else:
        setup.install_packages([peer])
