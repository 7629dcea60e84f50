"""A virtual machine with real RoCE v2 in software: Debian's kernel, its rdma_rxe, QEMU without KVM.

Nothing of it is installed: kernel and a few packages are downloaded by name, once, into
~/.cache/weft/roce, and unpacked there. run() boots once, runs one script as the machine's only
process, and powers off. The programs named come with the shared libraries that they need;
everything else is busybox, iproute2 and perftest. Programs that are more than a file, such as
Python's, run in the files of this host, which the machine can be given to read.
"""

import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "weft/roce"
PACKAGES = ("busybox-static", "kmod", "libkmod2", "perftest", "libibumad3", "libpci3")
# Of this host, beside what busybox does; the last ones since busybox' own call its own `ip`.
TOOLS = ("dash", "ip", "rdma", "tc", "chrt", "taskset", "timeout")
PERFTEST = ("ib_write_bw", "ib_send_bw", "ib_write_lat", "ib_send_lat")
MODULES = ("veth", "crc32_generic", "sch_netem", "sch_tbf", "sch_red", "ib_core", "ib_uverbs",
           "rdma_ucm", "rdma_rxe", "virtio_pci", "9p", "9pnet_virtio")
NEEDED = ("qemu-system-x86_64", "cpio", "dpkg-deb", "apt-get", "ldd", *TOOLS)
MARK = "weft-roce-exit "
MEMORY_MIB = 1536

# What runs first. The suite's script follows as /suite.
INIT = """#!/bin/sh
export PATH=/bin:/usr/bin:/sbin:/usr/sbin LD_LIBRARY_PATH=/lib
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /tmp /run/netns /dev/shm
mount -t tmpfs tmp /tmp; mount -t tmpfs shm /dev/shm
ulimit -l unlimited
for module in {modules}; do insmod /modules/$module.ko || echo "cannot load $module"; done
ip link set lo up
sh /suite
echo "{mark}$?"
sync
poweroff -f
"""


class Unavailable(Exception):
    """Why there can be no such machine here."""


def run(script: str, programs: list[pathlib.Path], timeout: float, show=None,
        memory_mib: int = MEMORY_MIB, shares_files: bool = False) -> tuple[int, str]:
    """The exit status of `script` and what the machine printed, `show`n line by line as it comes.

    `shares_files`: the machine can mount this host's, by 9p, read-only, as "host". 124: not within
    `timeout` seconds; 125: it did not boot.
    """
    more = ["-m", str(memory_mib)]
    if shares_files:
        more += ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,"
                            "multidevs=remap"]
    base = prepare()
    work = CACHE / f"run-{os.getpid()}"
    shutil.rmtree(work, ignore_errors=True)
    try:
        return boot(base, make_overlay(work, script, programs), timeout, show, more)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def prepare() -> pathlib.Path:
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"there is no {', '.join(missing)}; tools/dev test roce installs them")
    depends = output(["apt-cache", "depends", "linux-image-amd64"])
    kernels = re.findall(r"Depends: (linux-image-\S+)", depends)
    if not kernels:
        raise Unavailable("apt knows no linux-image-amd64: run apt-get update")
    recipe = hashlib.sha256(repr((PACKAGES, PERFTEST, MODULES, TOOLS, INIT)).encode()).hexdigest()[:12]
    base = CACHE / f"{kernels[0]}-{recipe}"
    if not (base / "done").exists():
        fresh = CACHE / f"fresh-{os.getpid()}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        print(f"preparing the Soft-RoCE machine in {base} (once, 70 MB to download)",
              file=sys.stderr, flush=True)
        unpack(fresh, kernels[0])
        (fresh / "done").touch()
        shutil.rmtree(base, ignore_errors=True)
        fresh.rename(base)
    return base


def unpack(folder: pathlib.Path, kernel: str) -> None:
    got = subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root",
                          "-o", "Acquire::Retries=3", kernel, *PACKAGES],
                         cwd=folder, capture_output=True, text=True)
    if got.returncode != 0:
        raise Unavailable("the machine's packages cannot be downloaded: " + got.stderr.strip())
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, folder / "root"], check=True)
        package.unlink()
    root = folder / "root"
    (kernel_image,) = (root / "boot").glob("vmlinuz-*")
    kernel_image.rename(folder / "vmlinuz")
    release = kernel.removeprefix("linux-image-")
    libraries = {"LD_LIBRARY_PATH": str(root / "lib/x86_64-linux-gnu")}
    depmod = root / "bin/kmod"
    link = folder / "depmod"
    link.symlink_to(depmod)
    subprocess.run([link, "-b", root, release], check=True, env={**os.environ, **libraries})
    wanted = with_dependencies(root / "lib/modules" / release, MODULES)
    (folder / "tree/modules").mkdir(parents=True)
    names = []
    for path in wanted:
        data = (root / "lib/modules" / release / path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
        name = pathlib.Path(path).name.split(".ko")[0]
        (folder / "tree/modules" / f"{name}.ko").write_bytes(data)
        names.append(name)
    fill_tree(folder / "tree", root, names)
    shutil.rmtree(root)


def with_dependencies(folder: pathlib.Path, names: tuple[str, ...]) -> list[str]:
    """Paths in the order in which they can be loaded."""
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {pathlib.Path(path).name.split(".ko")[0].replace("-", "_"): path for path in needs}
    order: list[str] = []

    def add(path: str) -> None:
        for other in needs[path]:
            add(other)
        if path not in order:
            order.append(path)

    for name in names:
        if name in by_name:  # else it is built in
            add(by_name[name])
    return order


def fill_tree(tree: pathlib.Path, root: pathlib.Path, modules: list[str]) -> None:
    for folder in ("bin", "lib", "lib64", "dev", "proc", "sys", "tmp", "run", "etc", "usr/lib"):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "bin/busybox", tree / "bin/busybox")
    applets = output([tree / "bin/busybox", "--list"]).split()
    for applet in applets:
        if applet not in ("busybox", "sh", *TOOLS):
            (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc/libibverbs.d").mkdir()
    (tree / "etc/libibverbs.d/rxe.driver").write_text("driver rxe\n")
    (tree / "etc/protocols").write_text("udp 17 UDP\ntcp 6 TCP\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")
    perftest = [root / "usr/bin" / name for name in PERFTEST]
    providers = pathlib.Path("/usr/lib/x86_64-linux-gnu/libibverbs")
    provider = sorted(providers.glob("librxe-rdmav*.so"))
    if not provider:
        raise Unavailable("there is no rxe provider: install ibverbs-providers")
    real = [pathlib.Path(shutil.which(name)) for name in TOOLS]
    copy_programs(tree, real + perftest,
                  [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"])
    # Busybox' own prefers its applets to programs of the same name.
    (tree / "bin/sh").symlink_to("dash")
    (tree / "usr/lib/x86_64-linux-gnu/libibverbs").mkdir(parents=True, exist_ok=True)
    shutil.copy(provider[0], tree / "usr/lib/x86_64-linux-gnu/libibverbs" / provider[0].name)
    copy_libraries(tree, provider[0], [])
    (tree / "init").write_text(INIT.format(modules=" ".join(modules), mark=MARK))
    (tree / "init").chmod(0o755)


def copy_programs(tree: pathlib.Path, programs: list[pathlib.Path],
                  folders: list[pathlib.Path]) -> None:
    (tree / "bin").mkdir(parents=True, exist_ok=True)
    (tree / "lib").mkdir(parents=True, exist_ok=True)
    for program in programs:
        to = tree / ("lib" if ".so" in program.name else "bin") / program.name
        shutil.copy(program, to)
        copy_libraries(tree, program, folders)


def copy_libraries(tree: pathlib.Path, program: pathlib.Path,
                   folders: list[pathlib.Path]) -> None:
    path = ":".join(map(str, folders))
    listing = output(["ldd", program], env={**os.environ, "LD_LIBRARY_PATH": path})
    for line in listing.splitlines():
        found = re.search(r"(/\S+)", line)
        if found is None:
            continue
        library = pathlib.Path(found.group(1))
        to = tree / ("lib64" if "ld-linux" in library.name else "lib") / library.name
        if not to.exists():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library.resolve(), to)


def make_overlay(work: pathlib.Path, script: str, programs: list[pathlib.Path]) -> pathlib.Path:
    tree = work / "tree"
    tree.mkdir(parents=True)
    copy_programs(tree, programs, [])
    (tree / "suite").write_text(script)
    return pack(tree, work / "overlay.cpio")


def pack(tree: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    with open(to, "wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names.encode(),
                       stdout=out, check=True)
    return to


def boot(base: pathlib.Path, overlay: pathlib.Path, timeout: float, show,
         more: list[str]) -> tuple[int, str]:
    initrd = overlay.with_name("initrd")
    whole = pack(base / "tree", overlay.with_name("base.cpio"))
    initrd.write_bytes(whole.read_bytes() + overlay.read_bytes())
    command = ["qemu-system-x86_64", *accelerator(), *more, "-smp", "2",
               "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot",
               "-serial", "stdio", "-kernel", base / "vmlinuz", "-initrd", initrd,
               "-append", "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable"]
    lines = []
    late = False
    with subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as machine:
        def stop() -> None:
            nonlocal late
            late = True
            machine.kill()

        timer = threading.Timer(timeout, stop)
        timer.start()
        for raw in machine.stdout:
            lines.append(raw.decode(errors="replace").replace("\r", ""))
            if show is not None:
                show(lines[-1].rstrip("\n"))
        timer.cancel()
    text = "".join(lines)
    found = re.findall(rf"^{MARK}(\d+)", text, re.MULTILINE)
    return (124 if late else int(found[-1]) if found else 125), text


def accelerator() -> list[str]:
    """KVM where processor and permissions allow it; /dev/kvm alone means nothing in a guest."""
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    if re.search(r"\b(vmx|svm)\b", flags) and os.access("/dev/kvm", os.R_OK | os.W_OK):
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi", "-cpu", "max"]


def output(command: list, **kwargs) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **kwargs)
    if done.returncode != 0:
        raise Unavailable(f"{command[0]} failed: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":  # machine.py SCRIPT PROGRAM...: runs it and shows what it prints
    sys.exit(run(pathlib.Path(sys.argv[1]).read_text(), [pathlib.Path(p) for p in sys.argv[2:]],
                 500, print)[0])
