"""Multipath over queue pairs against plain reliable ones over Soft-RoCE, in one virtual machine.

Goodput of multipath.wire=uc and rc beside transport=verbs and ib_write_bw, in turns: without and
with 1 % loss, as fast as the machine goes and over two spines of 100 Mbit/s; on one overdriven spine
with a queue of 20 ms; on one that marks (RED), with the queue that each leaves standing. Medians of
--repeats. docs/benchmarks/multipath-verbs.md says more.
"""
# needs: roce

import argparse
import json
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "roce"))
import scene  # noqa: E402

SECONDS = 4
# The number of a run that is not looked at: an emulator translates what runs for the first time.
WARM_UP = -1
MESSAGE = 64 << 10  # bytes; 1 MiB is what NCCL makes of large tensors
SPINE_MBITS = 100
# What 4096 bytes of data are on the wire, as the shaper counts it.
WIRE_RATIO = 4096 / (4096 + 14 + 20 + 8 + 12 + 4)
SPINE_MBYTES = SPINE_MBITS / 8 * WIRE_RATIO
MIB = 1.048576
# A software device's round trip takes a millisecond and more. A loss is mostly none of a full queue,
# whose delay shows first: a window is cut by a tenth for it.
MULTIPATH = ("transport=multipath multipath.gbps={gbps} multipath.base_rtt=1ms "
             "multipath.controller=swift:window_min=1,max_mdf=0.1 multipath.wire=")
OURS = {"uc": MULTIPATH + "uc", "rc": MULTIPATH + "rc verbs.timeout=14",
        "verbs": "verbs.timeout=14 verbs.queue_pairs={pairs}"}
WHO = (*OURS, "perftest")
TITLES = {"uc": "multipath, UC", "rc": "multipath, RC", "verbs": "verbs",
          "perftest": "ib_write_bw"}

FUNCTIONS = f"""
one_spine() {{ reroute_around 1; }}
spine_loss() {{  # in each direction once
  for spine in 0 1; do for leaf in 0 1; do
    replace_root spine$spine down$leaf netem limit 10000 loss $1
  done; done
}}
red() {{  # a queue of 20 ms that marks from a tenth on
  for leaf in 0 1; do
    in_space leaf$leaf tc qdisc replace dev up0 root handle 1: tbf rate {SPINE_MBITS}mbit \\
      burst 32kb limit 1mb
    in_space leaf$leaf tc qdisc replace dev up0 parent 1:1 handle 2: red limit 250000 min 30000 \\
      max 90000 avpkt 4200 burst 12 probability 0.1 bandwidth {SPINE_MBITS}mbit ecn
  done
}}
all_calm() {{ for s in 0 1; do for l in 0 1; do drop_root spine$s down$l; done; done; calm; }}
watch_queue() {{  # label: of leaf 0 to spine 0, until the file `watched` is gone
  while [ -e watched ]; do
    echo "$1-queue: $(in_space leaf0 tc -s -j qdisc show dev up0)"; sleep 0.2
  done
}}
watched() {{  # label, command...: the command, and the queue meanwhile
  label=$1; shift
  touch watched; watch_queue $label > queue.txt & watcher=$!
  "$@"
  rm watched; wait $watcher; cat queue.txt
}}
"""


class Case:
    """One state of the fabric, and how the runs in it are made."""

    def __init__(self, name: str, setup: str, gbps: float, pairs: int,
                 queue: bool = False, message: int = MESSAGE) -> None:
        self.name, self.setup, self.gbps, self.pairs, self.queue = name, setup, gbps, pairs, queue
        self.message = message

    def label(self, who: str, turn: int) -> str:
        return f"{self.name}-{who}-{turn}"

    def script(self, who: str, turn: int) -> str:
        label = self.label(who, turn)
        if who == "perftest":
            run = (f"perftest {label} ib_write_bw 0 -s {self.message} -D {SECONDS} -q {self.pairs} "
                   f"-t 16 --tclass=2")
        else:
            settings = OURS[who].format(gbps=self.gbps, pairs=self.pairs)
            run = (f"both {label} 0 seconds:{self.message}:{SECONDS} {settings} "
                   "verbs.traffic_class=2")
        return f"watched {label} {run}" if self.queue else run

    def goodput(self, text: str, who: str, turns: range) -> list[float]:
        """MB/s of each turn; nothing of one that failed."""
        if who == "perftest":
            found = [scene.perftest(text, self.label(who, turn), 3).get(self.message)
                     for turn in turns]
            return [mib * MIB for mib in found if mib is not None]
        found = [scene.measured(text, f"{self.label(who, turn)}.0", "bandwidth").get(self.message)
                 for turn in turns]
        return [rate for rate in found if rate is not None]


CASES = (
    Case("free", "all_calm", 0.6, 1),
    Case("free-1MiB", "all_calm", 0.6, 1, message=1 << 20),
    Case("loss", "all_calm; netem loss 1%", 0.6, 1),
    Case("spines", f"all_calm; rate {SPINE_MBITS}mbit 500ms", 0.2, 4),
    Case("spines-loss", f"all_calm; rate {SPINE_MBITS}mbit 500ms; spine_loss 1%", 0.2, 4),
    Case("overdriven", f"all_calm; one_spine; rate {SPINE_MBITS}mbit 20ms", 0.1, 2, queue=True),
    Case("red", "all_calm; one_spine; red", 0.1, 2, queue=True),
)


def queue_of(text: str, label: str) -> tuple[float, int]:
    """Milliseconds that the median sample stood for, and packets marked in all."""
    backlogs, marked = [], 0
    for line in scene.rows(text, f"{label}-queue"):
        qdiscs = json.loads(line)
        backlogs.append(max(int(one.get("backlog", 0)) for one in qdiscs))
        marked = max([marked, *(int(found) for found in re.findall(r'"marked":(\d+)', line))])
    busy = [bytes_ for bytes_ in backlogs if bytes_ > 0] or [0]
    return statistics.median(busy) * 8 / SPINE_MBITS / 1e3, marked


def row(case: str, ours: str, mine: float, peer: str, theirs: float, unit: str,
        repeats: int) -> None:
    print(json.dumps({"name": "multipath_roce", "case": f"{case}: {ours}", "ours": mine,
                      "peer": theirs, "peer_name": peer, "unit": unit,
                      "ratio": mine / theirs if theirs else None, "repeats": repeats}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default=",".join(case.name for case in CASES))
    parser.add_argument("--who", default=",".join(WHO))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting of uc and rc")
    parser.add_argument("--show", action="store_true", help="all that the machine prints")
    options = parser.parse_args()
    for wire in ("uc", "rc"):
        OURS[wire] = " ".join([OURS[wire], *options.set])
    cases = [case for case in CASES if case.name in options.cases.split(",")]
    who = options.who.split(",")
    turns = range(options.repeats)
    lines = [FUNCTIONS, *(cases[0].script(one, WARM_UP) for one in who)]
    for case in cases:
        lines.append(case.setup)
        lines += [case.script(one, turn) for turn in turns for one in who]
    runs = len(cases) * len(who) * options.repeats
    problems, text = scene.run("\n".join(lines) + "\n", ("verbs_pair",), 120 + 60 * runs)
    if problems or options.show:
        print(text, *problems, sep="\n", file=sys.stderr)
    medians = {}
    for case in cases:
        for one in who:
            rates = case.goodput(text, one, turns)
            shown = " ".join(f"{rate:.1f}" for rate in rates)
            print(f"{case.name}, {TITLES[one]}: {shown} MB/s", file=sys.stderr)
            for turn in turns if case.queue else ():
                queue, marked = queue_of(text, case.label(one, turn))
                print(f"  a queue of {queue:.1f} ms, {marked} marked so far", file=sys.stderr)
            if rates:
                medians[case.name, one] = statistics.median(rates)
    for (name, one), rate in medians.items():
        if name.endswith("loss"):
            without = "spines" if name == "spines-loss" else "free"
            if (without, one) in medians:
                row("1 % loss" + (", spines" if without == "spines" else ""), TITLES[one], rate,
                    "without loss", medians[without, one], "MB/s", options.repeats)
        if name in ("overdriven", "red"):
            row(name, TITLES[one], rate, "the link", SPINE_MBYTES, "MB/s", options.repeats)
        if one != "perftest" and (name, "perftest") in medians:
            row(name, TITLES[one], rate, TITLES["perftest"], medians[name, "perftest"], "MB/s",
                options.repeats)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
