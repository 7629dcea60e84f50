"""Builds a preset (default: release) into build/<preset>/{bin,lib}; sets up what is missing.

`build wheel` builds what Python's package weft is made of, and the wheel dist/weft-*.whl.
"""

import os
import pathlib
import re
import shutil
import subprocess

import setup
from common import BUILD, DEPS, PRESETS, ROOT, Failure, Stopwatch, execute, jobs, output, say


def add_arguments(parser) -> None:
    parser.add_argument("preset", nargs="?", default="release", choices=(*PRESETS, "wheel"),
                        help="release (default), debug, asan (with ubsan), tsan (tsan-torch: with the "
                             "PyTorch backend) or cuda; or wheel")
    parser.add_argument("--target", action="append", default=[], metavar="T",
                        help="only this target; may be repeated")


def run(options) -> None:
    if options.preset == "wheel":
        import wheel  # noqa: PLC0415 -- which needs this module

        setup.set_up()
        wheel.make()
    else:
        build(options.preset, options.target)


def build(preset: str = "release", targets: list[str] = ()) -> pathlib.Path:
    """Returns the build folder."""
    setup.set_up()
    folder = configure(preset)
    watch = Stopwatch()
    execute(["ninja", "-C", folder, "-j", jobs(), *targets], env=compiler_environment())
    say(f"built {preset} in {folder.relative_to(ROOT)} ({watch})")
    return folder


def compiler_environment() -> dict:
    """Lets ccache keep what was compiled with a precompiled header, and share it between clones."""
    return {"CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_BASEDIR": str(ROOT),
            "CCACHE_NOHASHDIR": "1", **os.environ}


def configure(preset: str) -> pathlib.Path:
    """Runs cmake where there is no build folder yet; ninja runs it again when its files change."""
    folder = BUILD / preset
    cache = folder / "CMakeCache.txt"
    presets = ROOT / "CMakePresets.json"
    if (folder / "build.ninja").exists() and presets.stat().st_mtime < cache.stat().st_mtime:
        return folder
    command = ["cmake", "--preset", preset, f"-DWEFT_DEPS_DIR={DEPS}"]
    environment = dict(os.environ)
    if preset == "cuda":
        toolkit = cuda_toolkit()
        command.append(f"-DCUDAToolkit_ROOT={toolkit}")
        environment["CUDACXX"] = str(toolkit / "bin/nvcc")
    execute(command, env=environment)
    cache.touch()
    return folder


def cuda_toolkit() -> pathlib.Path:
    """CUDA_PATH, else the toolkit of the nvcc on PATH, else /usr/local/cuda."""
    candidates = [os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if compiler := shutil.which("nvcc"):
        candidates.insert(1, toolkit_of(compiler))
    for candidate in candidates:
        if candidate and (pathlib.Path(candidate) / "bin/nvcc").exists():
            return pathlib.Path(candidate)
    raise Failure("the cuda preset needs a CUDA 13 toolkit: there is no nvcc on PATH, in CUDA_PATH "
                  "or in /usr/local/cuda. Everything else builds without: tools/dev build release")


def toolkit_of(compiler: str) -> pathlib.Path | None:
    """The toolkit's folder as nvcc names it: the program on PATH may be a script that calls another."""
    plan = subprocess.run([compiler, "--dryrun", "/dev/null"], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", plan.stdout + plan.stderr, re.MULTILINE)
    return pathlib.Path(top[1]).resolve() if top else None


def known_targets(folder: pathlib.Path, wanted: list[str]) -> list[str]:
    """Those of `wanted` that this build has."""
    listing = output(["ninja", "-C", folder, "-t", "targets", "all"])
    present = {line.split(":")[0] for line in listing.splitlines()}
    return [target for target in wanted if target in present]
