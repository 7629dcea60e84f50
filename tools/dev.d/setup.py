"""Installs what is missing: Debian packages, and LibTorch into .deps/. Does nothing twice.

WEFT_DEPS_DIR moves .deps/ elsewhere.
"""

import contextlib
import fcntl
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

from common import CACHE, DEPS, Failure, Stopwatch, execute, say

PACKAGES = """
    build-essential cmake ninja-build ccache mold pkg-config git python3-pip python3-venv
    clang-format
    libabsl-dev libspdlog-dev nlohmann-json3-dev libtoml11-dev libcli11-dev
    libhwloc-dev libpugixml-dev libucx-dev libibverbs-dev libsodium-dev
    zlib1g-dev
    sentencepiece libsentencepiece-dev dict-gcide
    libhiredis-dev redis-server etcd-server
    libgtest-dev libgmock-dev libbenchmark-dev iproute2 procps
""".split()

# Of the tier roce, installed when that is run: its virtual machine, see tests/roce/machine.py.
ROCE_PACKAGES = "qemu-system-x86 seabios ipxe-qemu cpio binutils ibverbs-providers".split()

# Of the tier launch: launchers beside our own.
LAUNCH_PACKAGES = "openmpi-bin slurm-wlm munge openssl".split()

# Of the tier observe: programs that read what ours write, and Python packages that do.
OBSERVE_PACKAGES = "prometheus chromium python3-venv".split()
OBSERVE_WHEELS = ("perfetto==0.59.1", "tensorboard==2.21.0", "setuptools<81")

TORCH_VERSION = "2.11.0"
# Of the torch wheel the headers and the CPU part; of CUDA only the two libraries that
# libtorch_cpu.so needs to load.
WHEELS = {
    f"torch=={TORCH_VERSION}": ("libtorch_cpu.so", "libc10.so", "libgomp.so.1"),
    "nvidia-cuda-runtime==13.0.96": ("libcudart.so.13",),
    "nvidia-cuda-cupti==13.0.85": ("libcupti.so.13",),
}
STAMP = "\n".join(WHEELS) + "\n"
# Of `tools/dev check`. Unlike Debian's it passes over system headers, and takes half the time.
CLANG_TIDY = "clang-tidy==23.1.4"
# Of `tools/dev bench collectives`.
ONECCL = ("oneccl-devel==2022.1.2", "impi-devel==2021.18.1", "impi-rt==2021.18.1")
# Versions in which the one wheel of Python's package is tried besides the tests' own: the torch of
# each is a download of 0.5 GB.
OTHER_PYTHONS = ("3.12",)
RETRY_PAUSES = (5, 30)  # seconds after a download that failed
MANYLINUX = ("2_28", "2_27", "2_26", "2_25", "2_24", "2_18", "2_17")


def add_arguments(parser) -> None:
    parser.add_argument("--packages-only", action="store_true", help="leave LibTorch out")


def run(options) -> None:
    set_up(options.packages_only)
    say("everything is installed")


def set_up(packages_only: bool = False) -> None:
    install_packages(PACKAGES)
    if not packages_only:
        install_libtorch()


def install_packages(packages: list[str]) -> None:
    missing = missing_packages(packages)
    if not missing:
        return
    say(f"installing {len(missing)} Debian packages: {' '.join(missing)}")
    apt = ["apt-get"] if os.geteuid() == 0 else ["sudo", "apt-get"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt += ["-qq", "-o", "Acquire::Retries=3"]
    execute([*apt, "update"], env=environment)
    execute([*apt, "install", "-y", "--no-install-recommends", *missing], env=environment,
            stdout=subprocess.DEVNULL)


def missing_packages(packages: list[str]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        raise Failure("this is no Debian: install by hand what tools/dev.d/setup.py lists")
    listing = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
        capture_output=True, text=True).stdout
    present = {line.split()[0] for line in listing.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in present]


def install_libtorch() -> None:
    """.deps/libtorch/{include,lib}: whole or not there at all."""
    target = DEPS / "libtorch"
    if libtorch_is_current(target):
        return
    DEPS.mkdir(parents=True, exist_ok=True)
    with locked(DEPS / ".lock"):
        if libtorch_is_current(target):  # another tools/dev was faster
            return
        watch = Stopwatch()
        say(f"downloading LibTorch {TORCH_VERSION} (0.5 GB) into {target}")
        with tempfile.TemporaryDirectory(prefix="libtorch-", dir=DEPS) as folder:
            fresh = pathlib.Path(folder) / "libtorch"
            for wheel, libraries in WHEELS.items():
                unpack(download(wheel, pathlib.Path(folder) / "wheels"), libraries, fresh)
            (fresh / "stamp").write_text(STAMP)
            if target.exists():
                target.rename(pathlib.Path(folder) / "old")
            fresh.rename(target)
        say(f"LibTorch is ready ({watch})")


def install_clang_tidy() -> pathlib.Path:
    """The program; .deps/clang-tidy-VERSION/: whole or not there at all."""
    target = DEPS / CLANG_TIDY.replace("==", "-")
    program = pathlib.Path("clang_tidy/data/bin/clang-tidy")
    DEPS.mkdir(parents=True, exist_ok=True)
    with locked(DEPS / ".lock"):
        if not target.exists():
            say(f"downloading {CLANG_TIDY} (45 MB) into {target}")
            with tempfile.TemporaryDirectory(prefix="clang-tidy-", dir=DEPS) as folder:
                fresh = pathlib.Path(folder) / "fresh"
                wheel = download(CLANG_TIDY, pathlib.Path(folder) / "wheels", ("py", "none"))
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(fresh)
                (fresh / program).chmod(0o755)
                fresh.rename(target)
    return target / program


def install_torch() -> pathlib.Path:
    """An interpreter with the whole of PyTorch, its CUDA and NCCL: .deps/bench-venv, a link to one
    that all clones share."""
    link, venv = DEPS / "bench-venv", CACHE / "torch-venv"
    wanted = [f"torch=={TORCH_VERSION}", "numpy", "accelerate", "lightning", "mpi4py"]

    def installed(folder: pathlib.Path) -> list[str]:
        stamp = folder / "stamp"
        return stamp.read_text().split() if stamp.is_file() else []

    def is_current(folder: pathlib.Path) -> bool:
        return installed(folder) == wanted

    python = link / "bin/python"
    if is_current(link):
        return python
    install_packages(["python3-venv"])
    for folder in (DEPS, CACHE):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / ".torch-lock"):
        if not is_current(venv):
            watch = Stopwatch()
            say(f"installing {', '.join(wanted)} into {venv} (5 GB, once)")
            if wanted[0] not in installed(venv):  # none, or another version of torch
                execute([sys.executable, "-m", "venv", "--clear", venv])
            execute([venv / "bin/python", "-m", "pip", "install", "-q", "--no-cache-dir",
                     "--disable-pip-version-check", *wanted])
            (venv / "stamp").write_text("\n".join(wanted) + "\n")
            say(f"PyTorch is ready ({watch})")
        if link.is_symlink():
            link.unlink()
        elif link.exists():  # of another version
            shutil.rmtree(link)
        link.symlink_to(venv)
    return python


def other_torch_pythons() -> dict[str, pathlib.Path]:
    """Interpreters of other versions of Python that have PyTorch, by version ("3.12")."""
    found = {version: CACHE / f"torch-venv-{version}/bin/python" for version in OTHER_PYTHONS}
    return {version: python for version, python in found.items()
            if (python.parent.parent / "stamp").is_file()}


def install_other_torches() -> None:
    """PyTorch for each version of OTHER_PYTHONS that this machine has. The libraries of CUDA that
    it needs are those of install_torch()."""
    install_torch()
    wanted = f"torch=={TORCH_VERSION}"
    for version in OTHER_PYTHONS:
        venv = CACHE / f"torch-venv-{version}"
        with locked(CACHE / ".torch-lock"):
            stamp = venv / "stamp"
            if stamp.is_file() and stamp.read_text().strip() == wanted:
                continue
            base = find_python(version)
            if base is None:
                say(f"there is no Python {version} on this machine")
                continue
            say(f"installing {wanted} for Python {version} into {venv} (0.5 GB)")
            execute([base, "-m", "venv", "--clear", venv])
            pip = [venv / "bin/python", "-m", "pip", "install", "-q", "--no-cache-dir",
                   "--disable-pip-version-check"]
            # Without what is linked or left out below, of which pip would complain.
            execute([*pip, "filelock", "fsspec", "jinja2", "networkx", "sympy",
                     "typing-extensions", "numpy", "setuptools<82"])
            execute([*pip, "--no-deps", wanted])
            (libraries,) = (CACHE / "torch-venv").glob("lib/python*/site-packages/nvidia")
            (packages,) = venv.glob("lib/python*/site-packages")
            (packages / "nvidia").symlink_to(libraries)
            stamp.write_text(wanted + "\n")


def find_python(version: str) -> pathlib.Path | None:
    """In PATH, or where pyenv keeps its own."""
    candidates = [shutil.which(f"python{version}"),
                  *sorted((pathlib.Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python3"))]
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", "import sys; print(*sys.version_info[:2], sep='.')"],
                              capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return pathlib.Path(candidate)
    return None


def install_observe() -> None:
    """What the tier observe needs; the Python packages in .deps/observe-venv, a link."""
    install_packages(OBSERVE_PACKAGES)
    venv, link = install_venv("observe-venv", OBSERVE_WHEELS), DEPS / "observe-venv"
    DEPS.mkdir(parents=True, exist_ok=True)
    if link.is_symlink():
        link.unlink()
    link.symlink_to(venv)


def install_oneccl() -> pathlib.Path:
    """A virtual environment with oneCCL and its MPI, bin/, include/ and lib/; clones share it."""
    return install_venv("oneccl-venv", ONECCL)


def install_venv(name: str, wheels: tuple[str, ...]) -> pathlib.Path:
    """A virtual environment in the folder that clones share, with these packages and no others."""
    venv = CACHE / name
    stamp = venv / "stamp"
    CACHE.mkdir(parents=True, exist_ok=True)
    with locked(CACHE / f".{name.removesuffix('-venv')}-lock"):
        if stamp.is_file() and stamp.read_text().split() == list(wheels):
            return venv
        install_packages(["python3-venv"])
        say(f"installing {' and '.join(wheels)} into {venv}")
        execute([sys.executable, "-m", "venv", "--clear", venv])
        execute([venv / "bin/python", "-m", "pip", "install", "-q", "--no-cache-dir",
                 "--disable-pip-version-check", *wheels])
        stamp.write_text("\n".join(wheels) + "\n")
    return venv


def libtorch_is_current(target: pathlib.Path) -> bool:
    stamp = target / "stamp"
    if stamp.is_file():
        return stamp.read_text() == STAMP
    # Unpacked by hand: accepted when it is whole and of the right version.
    version = target / "include/torch/headeronly/version.h"
    libraries = [name for names in WHEELS.values() for name in names]
    whole = version.is_file() and all((target / "lib" / name).is_file() for name in libraries)
    if not whole or f'"{TORCH_VERSION}"' not in version.read_text():
        return False
    stamp.write_text(STAMP)
    return True


@contextlib.contextmanager
def locked(path: pathlib.Path):
    with open(path, "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def download(wheel: str, folder: pathlib.Path,
             made_for: tuple[str, str] = ("cp", "cp311")) -> pathlib.Path:
    """`made_for`: implementation and ABI."""
    # What is asked for does not depend on the Python that runs pip.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
               "--python-version", "3.11", "--implementation", made_for[0], "--abi", made_for[1],
               "--disable-pip-version-check",
               "--progress-bar", "on" if sys.stderr.isatty() else "off", "-q", "-d", folder]
    for version in MANYLINUX:
        command += ["--platform", f"manylinux_{version}_{platform.machine()}"]
    command += ["--platform", f"manylinux2014_{platform.machine()}", wheel]
    for pause in (*RETRY_PAUSES, None):
        try:
            execute(command)
            break
        except Failure as failure:  # pip's own retries last for seconds, a bad line longer
            if pause is None:
                raise
            say(f"{failure}; trying again in {pause} s")
            time.sleep(pause)
    name = wheel.split("==")[0].replace("-", "_")
    (found,) = folder.glob(f"{name}-*.whl")
    return found


def unpack(wheel: pathlib.Path, libraries: tuple[str, ...], target: pathlib.Path) -> None:
    (target / "lib").mkdir(parents=True, exist_ok=True)
    wanted = set(libraries)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = pathlib.PurePosixPath(member.filename)
            if member.is_dir():
                continue
            if path.parts[:2] == ("torch", "include"):
                destination = target.joinpath(*path.parts[1:])
            elif path.name in wanted:
                wanted.remove(path.name)
                destination = target / "lib" / path.name
            else:
                continue
            destination.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, open(destination, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
    wheel.unlink()
    if wanted:
        raise Failure(f"{wheel.name} holds no {', '.join(sorted(wanted))}")
