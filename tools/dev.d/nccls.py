"""NCCLs for the tests of the tier nccl: one of each minor version, as PyPI has them.

FOLDER/VERSION/libnccl.so.2 each, whole or not there at all, and without the code for GPUs, which is
nine tenths of it: the tests play that.
"""

import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import zipfile

import setup
from common import CACHE, Failure, Stopwatch, say

VERSIONS = ("2.19.3", "2.20.5", "2.21.5", "2.22.3", "2.23.4", "2.24.3", "2.25.1", "2.26.2",
            "2.27.7", "2.28.9", "2.29.7", "2.30.7", "2.32.3")
FOLDER = CACHE / "nccl"  # where the tests look
LIBRARY = "libnccl.so.2"
DEVICE_CODE = (b".nv_fatbin", b"__nv_relfatbin")  # sections


def install() -> None:
    """What cannot be had is said, and left out: the test of that version is then not there."""
    missing = [version for version in VERSIONS if not (FOLDER / version / LIBRARY).exists()]
    if not missing:
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    watch = Stopwatch()
    say(f"downloading {len(missing)} versions of NCCL (0.2 to 0.35 GB each) into {FOLDER}")
    with setup.locked(FOLDER / ".lock"):
        for version in missing:
            try:
                install_one(version)
            except (Failure, OSError, zipfile.BadZipFile) as failure:
                say(f"no NCCL {version}: {failure}")
    say(f"the NCCLs are there ({watch})")


def install_one(version: str) -> None:
    target = FOLDER / version
    if target.exists():  # another tools/dev was faster
        return
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=FOLDER) as folder:
        wheel = setup.download(f"nvidia-nccl-cu12=={version}", pathlib.Path(folder) / "wheel",
                               ("py", "none"))
        fresh = pathlib.Path(folder) / version
        fresh.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(f"nvidia/nccl/lib/{LIBRARY}") as source, \
                    open(fresh / LIBRARY, "wb") as out:
                shutil.copyfileobj(source, out, 1 << 20)
        for offset, size in sections(fresh / LIBRARY, DEVICE_CODE):
            subprocess.run(["fallocate", "--punch-hole", "--offset", str(offset),
                            "--length", str(size), fresh / LIBRARY], check=False)
        os.chmod(fresh / LIBRARY, 0o755)
        fresh.rename(target)


def sections(path: pathlib.Path, names: tuple[bytes, ...]) -> list[tuple[int, int]]:
    """Offset and size in the file, of a 64-bit little-endian ELF file."""
    header = struct.Struct("<IIQQQQIIQQ")
    with open(path, "rb") as file:
        start, = struct.unpack("<Q", file.read(64)[40:48])
        file.seek(58)
        entry, count, strings = struct.unpack("<HHH", file.read(6))
        file.seek(start)
        table = [header.unpack_from(file.read(entry)) for _ in range(count)]
        file.seek(table[strings][4])
        text = file.read(table[strings][5])
    return [(row[4], row[5]) for row in table
            if text[row[0]:text.index(b"\0", row[0])] in names]
