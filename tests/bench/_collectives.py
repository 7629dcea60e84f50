"""What benchmarks of collectives share: sizes, kinds, weft-bw's words, and what --compare has printed."""

import json
import os
import pathlib
import signal
import statistics
import subprocess

from _bench import BIN, say

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
IN_PLACE = ("all_reduce", "broadcast", "reduce")
SIZES = {"8B": 8, "1KiB": 1 << 10, "16KiB": 1 << 14, "64KiB": 1 << 16, "256KiB": 1 << 18, "1MiB": 1 << 20,
         "4MiB": 1 << 22, "16MiB": 1 << 24, "64MiB": 1 << 26, "256MiB": 1 << 28}


class Unavailable(Exception):
    pass


def run(command: list, limit: float, **more) -> str:
    """What it printed. A program that takes too long ends with all that it started."""
    words = [str(word) for word in command]
    try:
        started = subprocess.Popen(words, stdout=subprocess.PIPE, text=True,
                                   start_new_session=True, **more)
    except OSError as error:
        raise Unavailable(f"{words[0]}: {error}") from None
    with started as program:
        try:
            text, _ = program.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            raise Unavailable(f"{words[0]} took longer than {limit:g} s") from None
    if program.returncode != 0:
        raise Unavailable(f"{' '.join(words)}: exit status {program.returncode}\n{text}")
    return text


def bw_words(operation: str, size: int, repeats: int, repeat_ms: float, programs: pathlib.Path = BIN) -> list:
    """weft-bw's for one case by the method of these benchmarks: the largest time over ranks, checked."""
    return [programs / "weft-bw", "--op", operation, "--place", "in" if operation in IN_PLACE else "out", "-b", size, "-a", 3,
            "--repeats", repeats, "--repeat-time", f"{repeat_ms}ms", "-w", 3, "--json"]


def bw_rows(text: str) -> list:
    """weft-bw's rows, with what was measured of each as `times`: us, one a repeat."""
    rows = json.loads(next(line for line in text.splitlines() if line.startswith("{")))["rows"]
    for row in rows:
        result = row["in_place"] or row["out_of_place"]
        if result["wrong"] not in (0, None):
            raise SystemExit(f"weft-bw: wrong data: {row}")
        row["times"] = result["repeats_us"]
    return rows


class Compared:
    """One case by every algorithm, over all rounds."""

    def __init__(self):
        self.times, self.chosen = {}, ""

    def add(self, text: str) -> None:
        """What weft-bw --compare has printed of one size."""
        for row in bw_rows(text):
            self.times.setdefault(row["algorithm"], []).extend(row["times"])
            if row["chosen"]:
                self.chosen = row["algorithm"]

    def median(self, algorithm: str) -> float:
        return statistics.median(self.times[algorithm])

    @property
    def best(self) -> str:
        return min(self.times, key=self.median)

    @property
    def regret(self) -> float:
        return self.median(self.chosen) / self.median(self.best) - 1


def compare_in_rounds(cases: dict, rounds: int, where: str, compare) -> None:
    """Fills `cases`, {(operation, size's name): Compared}, each in every round: `compare(operation, bytes)` returns what
    weft-bw --compare prints."""
    for turn in range(rounds):
        for (operation, size), case in cases.items():
            try:
                case.add(compare(operation, SIZES[size]))
            except (Unavailable, RuntimeError) as reason:
                raise SystemExit(f"{operation} {size} {where}: {reason}") from None
        say(f"{where}: round {turn + 1} of {rounds}")


def regret_rows(where: str, regrets: list) -> list:
    """The median and the worst of several cases, as keys and values of a benchmark's rows."""
    return [{"case": f"{where}: {what} of {len(regrets)} cases", "ours": round(1 + of(regrets), 4), "peer": 1,
             "peer_name": "the best of each", "unit": "times", "ratio": round(1 / (1 + of(regrets)), 4),
             "repeats": len(regrets)} for what, of in (("median", statistics.median), ("worst", max))]
