"""Slurm starts the ranks of a plan where the plan has them.

A cluster of its own is made for that, in a temporary folder and in namespaces that take all of it
along when they end: munged, slurmctld, and a slurmd for every host of the job. WEFT_SLURM_ROOT:
where Slurm is unpacked, if not in /.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.environ["WEFT_SOURCE"] + "/tests/fabric")
import netns  # pylint: disable=wrong-import-position

PATIENCE = 60  # seconds
ROOT = pathlib.Path(os.environ.get("WEFT_SLURM_ROOT", "/"))
LIBRARIES = ROOT / "usr/lib/x86_64-linux-gnu/slurm-wlm"
# 16 hosts in two pods, of which the job gets twelve, mixed: no launcher finds the order by itself.
FABRIC = "rail-optimised:pods=2,groups=2,hosts_per_group=4,rails=4,spines=2,cores=2"
HOSTS = "h3,h8,h4,h12,h1,h9,h15,h13,h2,h10,h6,h14"
RANKS_A_HOST = 4


def program(name: str) -> pathlib.Path | None:
    """Debian's name of it (slurmd-wlm), or everybody's."""
    for folder in ("usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin"):
        for path in (ROOT / folder / f"{name}-wlm", ROOT / folder / name):
            if path.is_file():
                return path
    return None


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
        done = subprocess.run([program(command[0]), *command[1:]], text=True, timeout=PATIENCE,
                              capture_output=True, env=self._environment(**variables))
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{done.stderr}\n"
                               f"{self._logs()}")
        return done.stdout

    def _environment(self, **variables) -> dict:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **variables,
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
                                                 env=self._environment()))

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


def planned(folder: pathlib.Path) -> list[tuple[str, int]]:
    """The plan's order, [rank]: host, GPU."""
    subprocess.run([os.environ["WEFT_BIN"] + "/weft-plan", "order", "--fabric", FABRIC, "--hosts",
                    HOSTS, "--layout", "tp=4,dp=3,pp=4", "--model", "gpt-13b,global_batch=48",
                    "--out", folder], check=True, stdout=subprocess.DEVNULL)
    rows = [line.split() for line in (folder / "ranks.txt").read_text().splitlines()
            if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    return [(row[1], int(row[2])) for row in rows]


# What a task says of where it is: SLURM_PROCID and so on, a line.
TASK = "sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME $SLURM_LOCALID'"


def placed(output: str) -> list[tuple[str, int]]:
    rows = sorted((line.split() for line in output.splitlines()), key=lambda row: int(row[0]))
    return [(row[1], int(row[2])) for row in rows]


class SlurmTest(unittest.TestCase):
    def test_ranks_run_where_the_plan_has_them(self):
        hosts = HOSTS.split(",")
        ranks = len(hosts) * RANKS_A_HOST
        with tempfile.TemporaryDirectory() as folder, Cluster(hosts, RANKS_A_HOST) as cluster:
            folder = pathlib.Path(folder)
            plan = planned(folder)
            self.assertEqual(len(plan), ranks)
            # As a job does it: first the hosts, then the order on them.
            srun = f"{program('srun')} -n {ranks}"
            output = cluster.run(
                "salloc", "-Q", "-N", str(len(hosts)), "-n", str(ranks), "sh", "-c",
                f"{srun} {TASK} && echo && SLURM_HOSTFILE={folder}/slurm.hosts "
                f"{srun} --distribution=arbitrary {TASK}")
            by_itself, with_list = output.split("\n\n")
            self.assertEqual(placed(with_list), plan)
            self.assertNotEqual(placed(by_itself), plan, "the list changed nothing")


if __name__ == "__main__":
    missing = [name for name in ("munged", "slurmctld", "slurmd", "slurmstepd", "srun", "salloc", "sinfo")
               if program(name) is None]
    reason = (f"there is no {', '.join(missing)} (Debian: slurm-wlm)" if missing else
              "slurmd needs root" if os.geteuid() != 0 else "")
    if reason:
        netns.skip(reason)
    netns.enter()
    netns.call(["ip", "link", "set", "lo", "up"])
    # Slurm looks up even numeric addresses as a host does that has more than 127.0.0.1.
    netns.call(["ip", "address", "add", "10.1.0.1/32", "dev", "lo"])
    unittest.main()
