"""Checks format, include direction, clocks, machine paths, generated pages, links, clang-tidy, unused declarations.

"callers" is the last of these: what nothing but tests uses (callers.py). Only when it is named: "sizes" prints lines and
public types by folder, beside those of --since, and finds nothing wrong (sizes.py).

clang-tidy remembers what was clean (in ~/.cache/weft), so a second run looks only at what changed.
"""

import difflib
import re
import subprocess

import build
import callers
import docs
import links
import prose
import setup
import sizes
import tidy
from common import ROOT, Failure, Stopwatch, say, tracked

CPP = ("*.h", "*.cc", "*.cu")
COLUMNS = 100

# Which folders a folder's files may include. Below everything: base.
ALLOWED = {
    "base": {"base"},
    "topology": {"topology", "base"},
    "net": {"net", "topology", "base"},
    "collectives": {"collectives", "net", "topology", "base"},
    "plugins": {"plugins", "collectives", "net", "topology", "base"},
    "trainer": {"trainer", "collectives", "net", "topology", "base"},
    "tools": {"tools", "plugins", "trainer", "collectives", "net", "topology", "base"},
}
# Files that may ask for the date, which jumps where the clock is set, and how often: for what people and other hosts
# read. Durations and deadlines are by SystemClock (base/clock.h).
DATES = {
    "tools/fault/emulated_rank.cc": 1,
    "tools/observe/agent.cc": 1,
    "tools/weft_driver.cc": 1,
    "trainer/files/folder_lock.cc": 1,
    "trainer/loop/metrics_log.cc": 2,
}
# LibTorch's headers cost 10-20 s a file; only these may include them.
TORCH_FOLDERS = ("collectives/c10d/", "trainer/", "plugins/torch/", "tests/collectives/c10d/",
                 "tests/trainer/", "cmake/")
TORCH_HEADERS = ("torch/", "ATen/", "c10/")


def add_arguments(parser) -> None:
    parser.add_argument("only", nargs="*", choices=[[], *CHECKS], metavar="CHECK",
                        help=f"of {', '.join(CHECKS)}; default: {', '.join(DEFAULT)}")
    parser.add_argument("--all", action="store_true",
                        help="clang-tidy for tests and for files with LibTorch as well (slow)")
    parser.add_argument("--tidy-minutes", type=float, metavar="N",
                        help="clang-tidy looks at no further file after N minutes; the newest come first")
    parser.add_argument("--since", metavar="COMMIT",
                        help="clang-tidy only for files that differ from this commit; sizes: beside this commit's")


def run(options) -> int:
    setup.set_up()
    failed = []
    for name, function in CHECKS.items():
        if name not in (options.only or DEFAULT):
            continue
        watch = Stopwatch()
        problems = function(options)
        for problem in problems:
            print(problem, flush=True)
        say(f"check {name}: {'clean' if not problems else f'{len(problems)} problems'} ({watch})")
        if problems:
            failed.append(name)
    if failed:
        say(f"check failed: {', '.join(failed)}")
    return 1 if failed else 0


def check_format(options) -> list[str]:
    del options
    files = tracked(*CPP)
    done = subprocess.run(["clang-format", "--dry-run", "-Werror", *files], cwd=ROOT,
                          capture_output=True, text=True)
    places = re.findall(r"^(.+?:\d+):\d+: error:", done.stderr, re.MULTILINE)
    first = {place.split(":")[0]: place for place in reversed(places)}
    if done.returncode != 0 and not first:
        raise Failure(f"clang-format: {done.stderr.strip()}")
    problems = [f"{place}: not formatted; run clang-format -i {name}"
                for name, place in sorted(first.items())]
    for name in files:
        problems += wide_comments(name, (ROOT / name).read_text())
    return problems + prose.problems()


def wide_comments(name: str, text: str) -> list[str]:
    """Comment lines that are too wide: clang-format leaves comments as they are (.clang-format)."""
    return [f"{name}:{number}: a comment of {len(line)} columns; at most {COLUMNS}"
            for number, line in enumerate(text.splitlines(), 1)
            if len(line) > COLUMNS and line.lstrip().startswith("//")]


def check_tidy(options) -> list[str]:
    return tidy.problems(everything=options.all, since=options.since, minutes=options.tidy_minutes)


def check_includes(options) -> list[str]:
    del options
    return [problem for name in tracked(*CPP)
            for problem in include_problems(name, (ROOT / name).read_text())]


def include_problems(name: str, text: str) -> list[str]:
    """What is wrong with the includes of one file."""
    problems = []
    folder = name.split("/")[0]
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not found:
            continue
        target = found.group(2).split("/")[0]
        is_ours = found.group(1) == '"' or (ROOT / found.group(2)).exists()  # <net/if.h> is not
        if is_ours and folder in ALLOWED and target in ALLOWED and target not in ALLOWED[folder]:
            problems.append(f"{name}:{number}: {folder}/ may not include {target}/; it may: "
                            f"{', '.join(sorted(ALLOWED[folder]))}")
        if found.group(2).startswith(TORCH_HEADERS) and not name.startswith(TORCH_FOLDERS):
            problems.append(f"{name}:{number}: LibTorch may be included only in "
                            f"{', '.join(TORCH_FOLDERS)}")
        if found.group(1) == '"' and target != "absl" and not (ROOT / found.group(2)).exists():
            problems.append(f"{name}:{number}: \"{found.group(2)}\" is no path from the root")
    return problems


def check_dates(options) -> list[str]:
    del options
    return [problem for name in tracked(*CPP) if name.split("/")[0] in ALLOWED
            for problem in date_problems(name, (ROOT / name).read_text())]


def date_problems(name: str, text: str) -> list[str]:
    """Where one file reads the date although durations, or deadlines, may be all that it wants."""
    places = [number for number, line in enumerate(text.splitlines(), 1) if "absl::Now()" in line]
    return [f"{name}:{number}: the date jumps where the clock is set; SystemClock().Now() is steady"
            for number in places if len(places) > DATES.get(name, 0)]


def check_docs(options) -> list[str]:
    del options
    problems = links.problems()
    for page, right in docs.generate().items():
        current = (ROOT / page).read_text() if (ROOT / page).exists() else ""
        if current != right:
            difference = list(difflib.unified_diff(current.splitlines(), right.splitlines(), n=0))
            line = re.match(r"@@ -(\d+)", difference[2]).group(1)
            problems.append(f"{page}:{line}: out of date; run tools/dev docs")
    return problems


def check_paths(options) -> list[str]:
    """No file names a folder of the machine on which it was written."""
    del options
    pattern = re.compile(r"(?<![\w.])/(?:root|work|home)/")
    problems = []
    for name in tracked():
        try:
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        problems += [f"{name}:{number}: a path of one machine: {line.strip()[:80]}"
                     for number, line in enumerate(lines, 1) if pattern.search(line)]
    return problems


def check_callers(options) -> list[str]:
    del options
    return callers.problems()


def check_sizes(options) -> list[str]:
    sizes.show(options.since)
    return []


CHECKS = {
    "format": check_format,
    "includes": check_includes,
    "dates": check_dates,
    "paths": check_paths,
    "docs": check_docs,
    "tidy": check_tidy,
    "callers": check_callers,
    "sizes": check_sizes,
}
DEFAULT = [name for name in CHECKS if name != "sizes"]
