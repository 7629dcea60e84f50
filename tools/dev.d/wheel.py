"""Makes the wheel of Python's package weft, of a build: dist/weft-VERSION-py3-none-linux_ARCH.whl.

It holds what build/<preset>/python/weft is, the modules of the transports verbs and UCX where they
are built, and copies of the shared libraries that these need, but for PyTorch's own and those of
the C and C++ runtime. All lie in one folder, where the libraries' run paths look first.
"""

import base64
import hashlib
import pathlib
import platform
import re
import zipfile

import build
import setup
from common import ROOT, Failure, output, say

TARGETS = ["weft_python", "weft_verbs_module", "weft_ucx"]
# Of the system or of PyTorch; everything else is brought along.
NOT_BUNDLED = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|[atu]b?san|torch\w*|c10\w*)\.so|ld-linux")
# Loaded where a transport of that name is asked for; what they need of RDMA's libraries is the
# host's, which fit its drivers.
MODULES = ("libweft-verbs.so", "libweft-ucx.so")
# Of the modules' needs only these, which the package brings for itself.
SHARED_WITH_MODULES = re.compile(r"lib(absl_|sodium|spdlog|fmt)")
TORCH_REQUIREMENT = ".".join(setup.TORCH_VERSION.split(".")[:2]) + ".*"
EPOCH = (1980, 1, 1, 0, 0, 0)  # one wheel for one content


def make(preset: str = "release") -> pathlib.Path:
    folder = build.configure(preset)
    build.build(preset, build.known_targets(folder, TARGETS))
    wheel = pack(folder, ROOT / "dist")
    say(f"made {wheel.relative_to(ROOT)} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return wheel


def pack(folder: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """From a build folder in which TARGETS are built; older wheels of ours in `target` go."""
    package = folder / "python/weft"
    if not (package / "lib/libweft_torch.so").exists():
        raise Failure(f"{folder} holds no libweft_torch.so: tools/dev build wheel builds it")
    version = version_of(package)
    files = {path.relative_to(folder / "python"): path for path in sorted(package.rglob("*"))
             if path.is_file() and "__pycache__" not in path.parts}
    for library in libraries(package, folder):
        files[pathlib.Path("weft/lib") / library.name] = library
    tag = f"py3-none-linux_{platform.machine()}"
    target.mkdir(parents=True, exist_ok=True)
    wheel = target / f"weft-{version}-{tag}.whl"
    fresh = wheel.with_suffix(".fresh")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        record = [add(archive, str(name), path.read_bytes()) for name, path in files.items()]
        info = f"weft-{version}.dist-info"
        for name, text in metadata(version, tag).items():
            record.append(add(archive, f"{info}/{name}", text.encode()))
        record.append(f"{info}/RECORD,,")
        add(archive, f"{info}/RECORD", "".join(line + "\n" for line in record).encode())
    for old in target.glob("weft-*.whl"):
        old.unlink()
    return fresh.rename(wheel)


def version_of(package: pathlib.Path) -> str:
    text = (package / "__init__.py").read_text()
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if not found:
        raise Failure(f"{package}/__init__.py names no __version__")
    return found[1]


def libraries(package: pathlib.Path, folder: pathlib.Path) -> list[pathlib.Path]:
    """The modules that are built, and the copies."""
    found: dict[str, pathlib.Path] = {}
    for library in sorted((package / "lib").glob("*.so")):
        for name, path in needs(library).items():
            if not NOT_BUNDLED.match(name):
                found[name] = path
    for module in MODULES:
        path = folder / "lib" / module
        if not path.exists():
            continue
        found[module] = path
        for name, needed in needs(path).items():
            if SHARED_WITH_MODULES.match(name):
                found[name] = needed
    return list(found.values())


def needs(library: pathlib.Path) -> dict[str, pathlib.Path]:
    """Name and place of the shared libraries that are loaded with it, as far as they are there."""
    lines = output(["ldd", library]).splitlines()
    pairs = (re.match(r"\s*(\S+) => (/\S+)", line) for line in lines)
    return {pair[1]: pathlib.Path(pair[2]) for pair in pairs if pair}


def add(archive: zipfile.ZipFile, name: str, data: bytes) -> str:
    """Adds a file; returns its line of RECORD."""
    info = zipfile.ZipInfo(name, EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (0o755 if ".so" in name else 0o644) << 16
    archive.writestr(info, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def metadata(version: str, tag: str) -> dict[str, str]:
    return {
        "METADATA": f"""Metadata-Version: 2.1
Name: weft
Version: {version}
Summary: Weft's PyTorch backend for host memory, and its rendezvous store
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={TORCH_REQUIREMENT}
""",
        "WHEEL": f"""Wheel-Version: 1.0
Generator: tools/dev
Root-Is-Purelib: false
Tag: {tag}
""",
        "entry_points.txt": """[torch.backends]
weft = weft._autoload:load

[torchrun.handlers]
weft = weft.torch.elastic:get_handler
weft-driver = weft.torch.driver:get_handler
""",
        "top_level.txt": "weft\n",
        "LICENSE": (ROOT / "LICENSE").read_text(),
    }
