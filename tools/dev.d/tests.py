"""Builds and runs the tests: all tiers, one tier, or those whose names match a filter.

Tiers: unit, seeds, local, fabric, nccl, torch, roce, gpu, launch, observe. What a machine cannot run is skipped,
with the reason. The tier roce takes minutes and is run when it is named only; the name layouts runs the
trainer's whole matrix of layouts, of which other runs take a sample; the name pythons tries the wheel
in other versions of Python, with a PyTorch for each (0.5 GB); nccl, torch, launch and
observe download what they need (NCCLs and PyTorch, 6 GB; Open MPI and Slurm; Prometheus, Chromium, Perfetto's
protos and TensorBoard) when they are named, and else run with what is there.
torch with --preset asan or tsan-torch runs its tests on an instrumented backend in an interpreter that is not.
The name all is every tier but roce, with what these download: one run of everything, which CI makes.
"""

import os
import pathlib
import platform
import re
import subprocess
import tempfile
import xml.etree.ElementTree

import build
import nccls
import setup
from common import PRESETS, ROOT, Failure, Stopwatch, say

TIERS = ("unit", "seeds", "local", "fabric", "nccl", "torch", "roce", "gpu", "launch",
         "observe")
DOWNLOADING_TIERS = ("nccl", "torch", "launch", "observe")
INSTRUMENTED_PRESETS = ("asan", "tsan-torch")  # those that have PyTorch
SANITIZED_TIERS = ("unit", "seeds", "local")
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
}


def add_arguments(parser) -> None:
    parser.add_argument("what", nargs="?", metavar="TIER|FILTER",
                        help="one of the tiers, all, or a regular expression for names; default: every "
                             "tier, with what is installed")
    parser.add_argument("--preset", default="release", choices=PRESETS, help="default: release")
    parser.add_argument("--sanitizers", action="store_true",
                        help=f"afterwards the tiers {', '.join(SANITIZED_TIERS)} under the asan "
                             "and tsan presets too")


def run(options) -> int:
    runs = [run_preset(options.preset, options.what)]
    if options.sanitizers:
        what = options.what or "|".join(SANITIZED_TIERS)
        tsan = "tsan-torch" if what.split(".")[0] == "torch" else "tsan"
        runs += [run_preset(preset, what) for preset in ("asan", tsan) if preset != options.preset]
    total = Result()
    for result in runs:
        total.add(result)
    print_summary(total)
    if total.passed + total.failed == 0:
        say("no test was run")
        return 1
    return 1 if total.failed or any(result.ctest_status for result in runs) else 0


class Result:
    def __init__(self) -> None:
        self.passed = 0
        self.ctest_status = 0
        self.failures: list[str] = []
        self.skips: list[tuple[str, str]] = []  # test, reason

    @property
    def failed(self) -> int:
        return len(self.failures)

    def add(self, other: "Result") -> None:
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips


def run_preset(preset: str, what: str | None) -> Result:
    # Unit tests need nothing but themselves, and a sanitizer's of PyTorch the library alone; those of
    # other tiers run programs.
    targets = {"unit": ["unit_tests"]}.get(what, [])
    if preset in INSTRUMENTED_PRESETS and what is not None and what.split(".")[0] == "torch":
        targets = ["weft_python"]
    folder = build.build(preset, targets)
    if what == "all":
        what, named = None, DOWNLOADING_TIERS
    else:
        named = what.split("|") if what is not None else []
    for name, what_it_is, install in (
            ("roce", "Soft-RoCE", lambda: setup.install_packages(setup.ROCE_PACKAGES)),
            ("launch", "Open MPI and Slurm",
             lambda: setup.install_packages(setup.LAUNCH_PACKAGES)),
            ("observe", "Prometheus, Chromium, Perfetto and TensorBoard", setup.install_observe),
            ("nccl", "NCCL", nccls.install),
            ("nccl|torch", "PyTorch", setup.install_torch),
            ("pythons", "PyTorch for other versions of Python", setup.install_other_torches)):
        if set(name.split("|")) & set(named):
            try:
                install()
            except (Failure, OSError) as failure:  # the tests say what they miss
                say(f"no {what_it_is}: {failure}")
    with tempfile.TemporaryDirectory(prefix="weft-test-") as reports:
        junit = pathlib.Path(reports) / "ctest.xml"
        command = ["ctest", "--test-dir", folder, "--output-on-failure", "--no-tests=ignore",
                   "-j", len(os.sched_getaffinity(0)), "--output-junit", junit,
                   "--test-output-size-passed", 1 << 20,  # unittest_skips() reads its end
                   *selection(what)]
        if preset in ("tsan", "tsan-torch"):  # its shadow memory does not fit every layout of address space
            command = ["setarch", platform.machine(), "-R", *command]
        environment = {**os.environ, **SANITIZER_OPTIONS, "GTEST_OUTPUT": f"xml:{reports}/"}
        if "roce" in named:  # minutes, so never but when asked for
            environment["WEFT_ROCE"] = "1"
        if "layouts" in named:  # minutes: the whole matrix of layouts, not a sample
            environment["WEFT_LAYOUTS"] = "full"
        watch = Stopwatch()
        command = [str(word) for word in command]
        status = subprocess.run(command, cwd=ROOT, env=environment).returncode
        say(f"tests of {preset} ended ({watch})")
        if not junit.exists():
            raise Failure(f"ctest exited with status {status} and wrote no results")
        result = read_results(junit, preset)
    result.ctest_status = status
    return result


def selection(what: str | None) -> list[str]:
    """ctest's options: labels for tiers (joined by |), names for anything else."""
    if what is None:
        return []
    if all(word in TIERS for word in what.split("|")):
        return ["-L", f"^({what})$"]
    return ["-R", what]


def read_results(junit: pathlib.Path, preset: str) -> Result:
    """Counts single test cases where a GoogleTest program reported them, else whole programs; of Python's unittest
    the cases that were skipped."""
    result = Result()
    for program in xml.etree.ElementTree.parse(junit).getroot().iter("testcase"):
        name = program.get("name")
        label = name if preset == "release" else f"{preset}: {name}"
        report = junit.parent / f"{name.split('.', 1)[-1]}.xml"
        before = result.failed
        good, skipped = program.get("status") == "run", was_skipped(program)
        if report.exists():
            read_googletest(report, label, result)
        elif skipped:
            result.skips.append((label, skip_reason(program)))
        elif good:
            skips, all_skipped = unittest_skips(program.findtext("system-out") or "")
            result.skips += [(label, reason) for reason in skips]
            result.passed += not all_skipped
        if not good and not skipped and result.failed == before:
            result.failures.append(f"{label}: {failure_reason(program)}")
    return result


def was_skipped(program) -> bool:
    """By its own word or ours; ctest calls a program that it cannot start "notrun" as well."""
    skipped = program.find("skipped")
    return program.get("status") == "disabled" or (
        skipped is not None and skipped.get("message", "").startswith("SKIP_"))


def skip_reason(program) -> str:
    skipped = program.find("skipped")
    for line in (program.findtext("system-out") or "").splitlines():
        if line.startswith("skipped: "):  # how tests that are no GoogleTest programs say it
            return line.removeprefix("skipped: ")
    return skipped.get("message", "") if skipped is not None else "disabled"


def unittest_skips(text: str) -> tuple[list[str], bool]:
    """Why a script of Python's unittest has skipped cases, one reason each, and whether it has skipped all."""
    reasons = [reason.replace("\\'", "'") for _, reason in
               re.findall(r"""(?:^|\.\.\. )skipped (['"])(.*)\1$""", text, re.MULTILINE)]
    skipped = sum(map(int, re.findall(r"^OK \(.*?skipped=(\d+).*\)$", text, re.MULTILINE)))
    ran = sum(map(int, re.findall(r"^Ran (\d+) tests? in ", text, re.MULTILINE)))
    reasons += ["its unittest names the reason with -v only"] * (skipped - len(reasons))
    return reasons, 0 < ran <= skipped


def failure_reason(program) -> str:
    for kind in ("failure", "skipped"):
        found = program.find(kind)
        if found is not None and found.get("message"):
            return found.get("message")
    return f"ended badly after {float(program.get('time', 0)):.0f} s; its output is above"


def read_googletest(report: pathlib.Path, label: str, result: Result) -> None:
    try:
        root = xml.etree.ElementTree.parse(report).getroot()
    except xml.etree.ElementTree.ParseError:  # it died while it wrote
        return
    for case in root.iter("testcase"):
        name = f"{label} {case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None:
            result.failures.append(name)
        elif case.get("result") == "skipped" or case.find("skipped") is not None:
            skipped = case.find("skipped")
            message = skipped.get("message", "") if skipped is not None else ""
            lines = [line for line in message.splitlines() if line.strip()]
            result.skips.append((name, lines[-1].strip() if lines else "no reason given"))
        elif case.get("status") == "run":
            result.passed += 1


def print_summary(total: Result) -> None:
    print(flush=True)
    reasons: dict[str, list[str]] = {}
    for name, reason in total.skips:
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        print(f"skipped, {reason}:")
        for name in names:
            print(f"    {name}")
    for failure in total.failures:
        print(f"FAILED: {failure}")
    print(f"{total.passed} passed, {total.failed} failed, {len(total.skips)} skipped", flush=True)
