"""Trains a small GPT on English text with four processes on this machine: the main job.

Sets up, builds, makes data/gcide from Debian's dict-gcide, trains trainer/configs/demo.toml into
runs/demo. An earlier runs/demo is kept under a name with its time, unless --resume continues it.
"""

import os
import pathlib
import time

import build
import setup
from common import ROOT, Failure, execute, say

DICTIONARY = pathlib.Path("/usr/share/dictd/gcide.dict.dz")
DATA = ROOT / "data/gcide"
RUN = ROOT / "runs/demo"
PROGRAMS = ["weft-run", "weft-train", "weft-data", "weft-plot"]
FILES = {  # of a run
    "loss.svg": "the loss curve; open it in a browser",
    "sample.txt": "text that the model wrote",
    "metrics.jsonl": "one line of numbers a step",
    "trace.json": "what each rank did when; open it in ui.perfetto.dev",
    "checkpoints": "to resume from: safetensors with a manifest",
    "model": "the trained model, in safetensors under Hugging Face's names",
    "config.toml": "every setting of the run",
    "logs": "what each rank printed",
}


def add_arguments(parser) -> None:
    parser.add_argument("--resume", action="store_true",
                        help="go on from the last checkpoint of runs/demo")
    parser.add_argument("-n", "--ranks", type=int, default=4, metavar="N",
                        help="number of processes (default: 4)")
    parser.add_argument("--run-dir", type=pathlib.Path, default=RUN, metavar="DIR",
                        help="the run's folder (default: runs/demo)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="overrides a key of the config, as train.steps=100")


def run(options) -> None:
    programs = build.build("release", PROGRAMS) / "bin"
    prepare_data(programs)
    folder = options.run_dir.resolve()
    if not options.resume:
        move_aside(folder)
    command = [programs / "weft-run", "-n", options.ranks, "--", programs / "weft-train",
               "trainer/configs/demo.toml", "--run-dir", shown(folder)]
    command += ["--resume"] if options.resume else []
    for pair in options.set:
        command += ["--set", pair]
    execute(command)
    print("\nThe files of the run:")
    for name, sentence in FILES.items():
        if (folder / name).exists():
            print(f"  {shown(folder / name):24}  {sentence}")
    print(f"\nAll other programs, in {shown(programs)}: tools/dev build")


def shown(path: pathlib.Path) -> str:
    """Relative to the root, where we run, if it lies there."""
    return os.path.relpath(path, ROOT) if path.is_relative_to(ROOT) else str(path)


def prepare_data(programs: pathlib.Path) -> None:
    if (DATA / "gcide.json").exists():  # weft-data writes it last
        return
    setup.install_packages(["dict-gcide"])
    DATA.mkdir(parents=True, exist_ok=True)
    prefix = (DATA / "gcide").relative_to(ROOT)
    say(f"making {prefix} from {DICTIONARY}")
    execute([programs / "weft-data", "prepare", "--input", DICTIONARY, "--cleaner", "gcide",
             "--output-prefix", prefix, "--vocab-size", 4096, "--validation-fraction", 0.01])


def move_aside(folder: pathlib.Path) -> None:
    if not folder.exists():
        return
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(folder.stat().st_mtime))
    aside = folder.with_name(f"{folder.name}-{stamp}")
    if aside.exists():
        raise Failure(f"{aside} is in the way of an earlier {folder.name}; remove one of the two")
    folder.rename(aside)
    say(f"the earlier run is now {shown(aside)} (to go on with it: move it back, then "
        "tools/dev demo --resume)")
