"""Slurm itself, on this machine: munged, slurmctld, and a slurmd for every host of a small cluster.

    enter()                       at the start of a program: skips the test where there is no Slurm, and
                                  runs the rest in namespaces that take all of it along when they end
    with Cluster(hosts, cores) as cluster:
        cluster.run("srun", ...)  one of Slurm's programs

Every host is this machine; enter() makes the names that it is given this machine's. WEFT_SLURM_ROOT:
where Slurm is unpacked, if not in /.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

import netns

PATIENCE = 60  # seconds
ROOT = pathlib.Path(os.environ.get("WEFT_SLURM_ROOT", "/"))
LIBRARIES = ROOT / "usr/lib/x86_64-linux-gnu/slurm-wlm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmstepd", "srun", "salloc", "sinfo")


def program(name: str) -> pathlib.Path | None:
    """Debian's name of it (slurmd-wlm), or everybody's."""
    for folder in ("usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin"):
        for path in (ROOT / folder / f"{name}-wlm", ROOT / folder / name):
            if path.is_file():
                return path
    return None


def enter(hosts: list[str]) -> None:
    """Returns only inside."""
    missing = [name for name in PROGRAMS if program(name) is None]
    if missing:
        netns.skip(f"there is no {', '.join(missing)} (Debian: slurm-wlm)")
    if os.geteuid() != 0:
        netns.skip("slurmd needs root")
    netns.enter()
    netns.call(["ip", "link", "set", "lo", "up"])
    # Slurm looks up even numeric addresses as a host does that has more than 127.0.0.1.
    netns.call(["ip", "address", "add", "10.1.0.1/32", "dev", "lo"])
    known = pathlib.Path("/etc/hosts").read_text()
    with tempfile.NamedTemporaryFile("w", prefix="weft-hosts-", dir="/tmp") as file:
        file.write(known + "".join(f"127.0.0.1 {host}\n" for host in hosts))
        file.flush()
        os.chmod(file.name, 0o644)
        netns.call(["mount", "--bind", file.name, "/etc/hosts"])


class Cluster:
    """`with Cluster(hosts, cores) as cluster:` its daemons end with it, and its folder goes."""

    def __init__(self, hosts: list[str], cores: int):
        self.hosts = hosts
        self.cores = cores
        self.daemons: list[subprocess.Popen] = []

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-slurm-", dir="/tmp"))
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket",
                        f"--key-file={self.folder}/munge.key", f"--pid-file={self.folder}/munge.pid",
                        f"--seed-file={self.folder}/munge.seed",
                        f"--log-file={self.folder}/munged.log")
            self._wait_for("munge's socket", (self.folder / "munge.socket").exists)
            self._start("slurmctld", "-D", "-f", self.folder / "slurm.conf")
            for host in self.hosts:
                self._start("slurmd", "-D", "-f", self.folder / "slurm.conf", "-N", host,
                            "-d", program("slurmstepd"))
            self._wait_for("idle nodes", self._all_are_idle)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for number in (signal.SIGTERM, signal.SIGKILL):
            for daemon in reversed(self.daemons):
                if daemon.poll() is None:
                    daemon.send_signal(number)
            for daemon in self.daemons:
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    pass
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command, **variables) -> str:
        done = self.call(*command, **variables)
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{done.stderr}\n"
                               f"{self._logs()}")
        return done.stdout

    def call(self, *command, patience=PATIENCE, **variables) -> subprocess.CompletedProcess:
        return subprocess.run([program(command[0]), *command[1:]], text=True, timeout=patience,
                              capture_output=True, env=self._environment(**variables))

    def _environment(self, **variables) -> dict:
        # Tasks get it too, and Weft's programs refuse settings that they do not know.
        kept = {name: value for name, value in os.environ.items()
                if name not in (netns.INSIDE, "WEFT_SLURM_ROOT")}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf"), **variables,
                "LD_LIBRARY_PATH": f"{LIBRARIES}:{LIBRARIES.parent}"}

    def _configure(self):
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        name = socket.gethostname().split(".")[0]
        nodes = "\n".join(f"NodeName={host} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} "
                          f"CPUs={self.cores} State=UNKNOWN"
                          for port, host in enumerate(self.hosts, 6830))
        (self.folder / "slurm.conf").write_text(f"""
ClusterName=weft
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
PluginDir={LIBRARIES}
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge.socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool.%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd.%n.pid
SlurmctldLogFile={self.folder}/slurmctld.log
SlurmdLogFile={self.folder}/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")

    def _start(self, name: str, *arguments):
        log = open(self.folder / f"{name}.out", "ab")
        with log:
            self.daemons.append(subprocess.Popen([program(name), *arguments], stdout=log, stderr=log,
                                                 cwd=self.folder, env=self._environment()))

    def _all_are_idle(self) -> bool:
        states = subprocess.run([program("sinfo"), "-h", "-N", "-o", "%T"], text=True,
                                capture_output=True, env=self._environment()).stdout.split()
        return states == ["idle"] * len(self.hosts)

    def _wait_for(self, what: str, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            dead = [one.args[0] for one in self.daemons if one.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"no {what}; ended: {dead}\n{self._logs()}")
            time.sleep(0.1)

    def _logs(self) -> str:
        files = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"-- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
                         for path in files)
