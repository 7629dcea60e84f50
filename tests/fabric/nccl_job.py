"""A job of NCCL itself over the plugin's tcp on a netns.Fabric, its GPU scripted: a rank on each host."""

import os
import pathlib
import socket
import subprocess
import time

import planned

LIB = planned.BIN.parent / "lib"
NCCL = pathlib.Path(os.environ.get("WEFT_TEST_NCCL", pathlib.Path.home() / ".cache/weft/nccl/2.28.9/libnccl.so.2"))
RANK = planned.BIN / "tests/nccl_scripted_gpu_test"
GPU = LIB / "scripted/libscripted_gpu.so"
ORDER = (0, 2, 1, 3)  # host of each rank, two a leaf: every edge of the ring crosses the spines
PLANNED_PORTS = range(16384, 32768)
ESTABLISHED = "01"  # of /proc/net/tcp
LIMIT = 300  # seconds of a job on a busy machine


def missing() -> str:
    """What of the job is not there, or nothing."""
    return "".join(f"there is no {path} (tools/dev test nccl fetches NCCL)\n" for path in (NCCL, RANK, GPU)
                   if not path.exists())


def make_plan(fabric, folder, count: int) -> pathlib.Path:
    """For rings of all ranks that move `count` floats each."""
    fabric_file, hashes = planned.write_fabric(fabric, folder)
    planned.plan(fabric_file, hashes, folder / "plan", len(ORDER), count * 4, "--order", "as-allocated", "--hosts",
                 ",".join(f"h{host}" for host in ORDER))
    return folder / "plan"


def run(fabric, folder, count: int, plan) -> tuple:
    """Seconds, NCCL's words by rank, bytes of each uplink [leaf][spine], and by leaf how many connections from planned
    ports each spine has. `count`: floats of a rank; `plan`: a plan directory, or None."""
    before, begin = fabric.counters(), time.monotonic()
    identity = folder / f"id{time.monotonic_ns()}"
    programs = []
    for rank, host in enumerate(ORDER):
        environment = dict(os.environ, WEFT_TEST_NCCL=str(NCCL), WEFT_TEST_SCRIPTED_GPU=str(GPU),
                           NCCL_NET_PLUGIN=str(LIB / "libnccl-net-weft.so"), NCCL_HOSTID=f"host{host}",
                           NCCL_SOCKET_IFNAME="eth0", NCCL_ALGO="Ring", NCCL_PROTO="Simple", NCCL_MAX_NCHANNELS="1",
                           NCCL_MNNVL_ENABLE="0", NCCL_RAS_ENABLE="0", NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET",
                           WEFT_TRANSPORT="tcp", WEFT_TCP_INTERFACE="eth0", WEFT_TCP_SOCKETS="1")
        if plan is not None:
            environment["WEFT_PLAN"] = str(plan)
        words = ["timeout", LIMIT, RANK, "--nccl-rank", rank, len(ORDER), 1, 1, 0, 1, 0, identity, count]
        log = (folder / f"log{rank}").open("w+")
        programs.append((fabric.start(host, words, env=environment, stdout=log, stderr=subprocess.STDOUT), log))
    said, sockets = [], set()
    deadline = time.monotonic() + LIMIT + 30
    while any(program.poll() is None for program, _ in programs) and time.monotonic() < deadline:
        for (program, _), host in zip(programs, ORDER):
            sockets.update(_sockets(program.pid, host))
        time.sleep(0.02)
    seconds = time.monotonic() - begin
    for program, log in programs:
        program.wait(timeout=5)
        log.seek(0)
        said.append(log.read())
        log.close()
    for (program, _), text in zip(programs, said):
        if program.returncode != 0:
            raise RuntimeError(f"a rank's status is {program.returncode}: {text[-4000:]}")
    bytes_sent = [[after - early for after, early in zip(*leaf)] for leaf in zip(fabric.counters(), before)]
    return seconds, said, bytes_sent, _spines_of(fabric, sockets)


def _sockets(pid, host) -> list:
    """(host, source port, target, target port) of connections from planned ports to another host."""
    out = []
    try:
        lines = pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:  # it has ended
        return out
    for line in lines:
        own, other, state = line.split()[1:4]
        port, target = int(own[9:], 16), socket.inet_ntoa(int(other[:8], 16).to_bytes(4, "little"))
        if state == ESTABLISHED and port in PLANNED_PORTS:
            out.append((host, port, target, int(other[9:], 16)))
    return out


def _spines_of(fabric, sockets) -> list:
    """By leaf: how many of the connections that leave it take each spine, as its kernel says."""
    out = []
    for leaf in range(fabric.leaves):
        tuples = [(fabric.address(host), target, port, other, 6) for host, port, target, other in sockets
                  if fabric.leaf_of(host) == leaf]
        asked = fabric.ask(leaf, tuples) if tuples else []
        out.append([asked.count(spine) for spine in range(fabric.spines)])
    return out
