"""Makes the wheel of Python's package weft, of a build: dist/weft-VERSION-py3-none-PLATFORM.whl.

It holds what build/<preset>/python/weft is, the modules of the transports verbs and UCX where they
are built, and copies of the shared libraries that these need, but for PyTorch's own and those of
the C and C++ runtime. All lie in one folder, where the libraries' run paths look first. Libraries
come without debugging information, and with the licences of what is not ours. The platform is
manylinux_2_N of the oldest C library that has all symbols: pip refuses older ones.
"""

import base64
import hashlib
import pathlib
import platform
import re
import tempfile
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
# Headers that our libraries have code of.
COMPILED_IN = ("/usr/include/nlohmann/json.hpp", "/usr/include/toml.hpp", "/usr/include/absl/base/config.h")
# The C library of the platform manylinux_2_N that has the C++ library's GLIBCXX_3.4.M, by M.
LIBSTDCXX = {28: 31, 29: 34, 30: 35, 31: 38, 32: 38, 33: 39}
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
    copied = list(files.values())
    tag = f"py3-none-{platform_of([path for path in copied if '.so' in path.name])}"
    licences = notices([path for path in copied if "/usr/lib/" in str(path.resolve())])
    target.mkdir(parents=True, exist_ok=True)
    wheel = target / f"weft-{version}-{tag}.whl"
    fresh = wheel.with_suffix(".fresh")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        record = [add(archive, str(name), contents(path, sanitized(folder)))
                  for name, path in files.items()]
        info = f"weft-{version}.dist-info"
        for name, text in metadata(version, tag, licences).items():
            record.append(add(archive, f"{info}/{name}", text.encode()))
        record.append(f"{info}/RECORD,,")
        add(archive, f"{info}/RECORD", "".join(line + "\n" for line in record).encode())
    for old in target.glob("weft-*.whl"):
        old.unlink()
    return fresh.rename(wheel)


def sanitized(folder: pathlib.Path) -> bool:
    """Whether the build has a sanitizer, whose reports need the debugging information."""
    return bool(re.search(r"^WEFT_SANITIZE:\w+=.+$", (folder / "CMakeCache.txt").read_text(),
                          re.MULTILINE))


def contents(path: pathlib.Path, whole: bool) -> bytes:
    if whole or ".so" not in path.name:
        return path.read_bytes()
    with tempfile.NamedTemporaryFile() as stripped:
        output(["strip", "--strip-unneeded", "-o", stripped.name, path])
        return pathlib.Path(stripped.name).read_bytes()


def platform_of(libraries: list[pathlib.Path]) -> str:
    """manylinux_2_N_ARCH by what all libraries ask of the C and C++ libraries; linux_ARCH where no
    such platform is known."""
    needed = {"GLIBC_2": [17], "GLIBCXX_3.4": [0]}
    text = output(["readelf", "-WV", *libraries])
    for name, version in re.findall(r"Name: (GLIBC_2|GLIBCXX_3\.4)\.(\d+)", text):
        needed[name].append(int(version))
    cxx = max(needed["GLIBCXX_3.4"])
    if re.search(r"lib[atu]b?san", output(["readelf", "-Wd", *libraries])) or cxx > max(LIBSTDCXX):
        return f"linux_{platform.machine()}"
    of_cxx = LIBSTDCXX[max(cxx, min(LIBSTDCXX))]
    return f"manylinux_2_{max(*needed['GLIBC_2'], of_cxx)}_{platform.machine()}"


def notices(libraries: list[pathlib.Path]) -> dict[str, str]:
    """The licences of what the wheel holds of others, as their Debian packages have them, by package."""
    owners = output(["dpkg", "-S", *sorted({str(path.resolve()) for path in libraries}), *COMPILED_IN])
    packages = sorted({line.split(":")[0] for line in owners.splitlines()})
    found = {}
    for package in packages:
        path = pathlib.Path("/usr/share/doc", package, "copyright")
        if not path.exists():
            raise Failure(f"the wheel holds a part of {package}, whose licence should be {path}")
        found[f"licenses/third_party/{package}.txt"] = path.read_text()
    return found


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


def metadata(version: str, tag: str, licences: dict[str, str]) -> dict[str, str]:
    """The files of .dist-info, RECORD aside, by name."""
    licences = {"licenses/LICENSE": (ROOT / "LICENSE").read_text(), **licences}
    files = "".join(f"License-File: {name.removeprefix('licenses/')}\n" for name in licences)
    description = (ROOT / "plugins/torch/python/README.md").read_text()
    return {
        "METADATA": f"""Metadata-Version: 2.4
Name: weft
Version: {version}
Summary: Weft's PyTorch backend for host memory, and its rendezvous store
Author: The authors of Weft
License-Expression: Apache-2.0
{files}Keywords: distributed,collectives,torch,rdma,roce
Classifier: Development Status :: 4 - Beta
Classifier: Intended Audience :: Developers
Classifier: Intended Audience :: Science/Research
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Topic :: System :: Distributed Computing
Classifier: Typing :: Typed
Requires-Python: >=3.10
Requires-Dist: torch=={TORCH_REQUIREMENT}
Description-Content-Type: text/markdown

{description}""",
        "WHEEL": f"""Wheel-Version: 1.0
Generator: tools/dev
Root-Is-Purelib: false
Tag: {tag}
""",
        "entry_points.txt": """[torch.backends]
weft = weft._autoload:load

[torchrun.handlers]
weft = weft._torchrun:store
weft-driver = weft._torchrun:driver
""",
        "top_level.txt": "weft\n",
        **licences,
    }
