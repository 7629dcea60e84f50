"""A job that is planned and run by the programs that people use: weft-plan, weft-run, weft-bw."""

import os
import pathlib
import re
import subprocess
import time

BIN = pathlib.Path(os.environ.get("WEFT_BIN", "."))
MASTER_PORT = 29400
# How weft-topo discover refuses what other programs' load made of its round trips and loads.
DISTURBED = "under load contradict each other|have not told|no path is filled|without any load"


def run(program, *words, check=True, **more):
    done = subprocess.run([str(BIN / program), *map(str, words)], text=True, capture_output=True,
                          **more)
    if check and done.returncode != 0:
        raise RuntimeError(f"{program} {' '.join(map(str, words))}: status {done.returncode}: "
                           f"{done.stderr.strip()}")
    return done


def write_fabric(fabric, folder) -> tuple:
    """What nobody had to discover: a fabric file, and a file of addresses and hashes."""
    hosts = fabric.hosts_per_leaf
    (folder / "known.toml").write_text(
        f'generate = {{ type = "leaf-spine", leaves = {fabric.leaves}, hosts_per_leaf = {hosts}, '
        f'spines = {fabric.spines}, nics = {fabric.nics}, bandwidth = "{fabric.host_mbit or 10_000}Mbps", '
        f'spine_bandwidth = "{fabric.mbit or 10_000}Mbps" }}\n')
    lines = ["weft-hashes 1"]
    lines += [f"address h{host} {nic} {fabric.address(host, nic=nic)}"
              for host in range(fabric.hosts) for nic in range(fabric.nics)]
    lines += [f"hash leaf{leaf} linux:seed={seed}" for leaf, seed in enumerate(fabric.seeds)]
    lines += [f"router {fabric.spine_address(leaf, spine)} spine{spine}"
              for leaf in range(fabric.leaves) for spine in range(fabric.spines)]
    (folder / "known.hashes").write_text("\n".join(lines) + "\n")
    return folder / "known.toml", folder / "known.hashes"


def plan(fabric_file, hashes, out, ranks, size, *more, algorithm="ring"):
    return run("weft-plan", "paths", "--fabric", fabric_file, "--hash", hashes, "--transport",
               "tcp", "--layout", f"dp={ranks}", "--node", "gpus=1", "--traffic",
               f"name=gradients,axes=dp,collective=all_reduce,algorithm={algorithm},bytes={size}", "--out", out, *more)


def discover_undisturbed(test, discover):
    """What discover() returns, as on_all_hosts(): a second time where the first was disturbed. Skips the rest of
    `test` where both were, on a machine that is overloaded."""
    for attempt in ("first", "second"):
        all_ranks = discover()
        reason = all_ranks[0][2].strip()
        if not re.search(DISTURBED, reason):
            return all_ranks
        print(f"the {attempt} try is refused, load average {os.getloadavg()[0]}: {reason}", flush=True)
    if os.getloadavg()[0] >= 3 * os.cpu_count():
        test.skipTest(f"load average {os.getloadavg()[0]}: nothing can be told from round trips")
    return all_ranks


def on_all_hosts(fabric, *words, port, limit=600, more=None, v6=False):
    """A rank on each host, started one by one with torchrun's environment: (status, output, errors) of each.

    `more`: variables of a host.
    """
    programs = start_on(fabric, range(fabric.hosts), *words, port=port, more=more, v6=v6)
    try:
        deadline = time.monotonic() + limit
        out = []
        for program in programs:
            output, errors = program.communicate(timeout=max(0.1, deadline - time.monotonic()))
            out.append((program.returncode, output, errors))
        return out
    finally:
        for program in programs:
            program.kill()
            program.wait()


def start_on(fabric, hosts, *words, port, more=None, v6=False) -> list:
    """The ranks of these hosts, of a job over all."""
    programs = []
    try:
        for host in hosts:
            environment = dict(os.environ, RANK=str(host), WORLD_SIZE=str(fabric.hosts), LOCAL_RANK="0",
                               LOCAL_WORLD_SIZE="1", MASTER_ADDR=fabric.address(0, v6), MASTER_PORT=str(port),
                               WEFT_JOB_SECRET="22" * 32, **({"WEFT_TCP_FAMILY": "ipv6"} if v6 else {}), **(more(host) if more else {}))
            programs.append(fabric.start(host, [BIN / words[0], *words[1:]], env=environment, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    except BaseException:
        for program in programs:
            program.kill()
            program.wait()
        raise
    return programs


class Plan:
    """What the files of a plan directory say."""

    def __init__(self, folder):
        self.host_of_rank, self.flows, self.leaf_of = {}, [], {}
        for line in (folder / "ranks.txt").read_text().splitlines():
            words = line.split("#")[0].split()
            if words:
                self.host_of_rank[int(words[0])] = words[1]
        for line in (folder / "paths.txt").read_text().splitlines():
            words = line.split()
            if words and words[0] == "host":
                self.leaf_of[words[1]] = words[3]
            if words and words[0] == "flow":
                choices = dict(word.rsplit(":", 1) for word in words[6:])
                self.flows.append((int(words[1]), int(words[2]), choices))


def start_job(fabric, folder, words, host_number, more=(), with_plan=True, v6=False) -> list:
    """weft-run --plan on each host; `host_number`: of a host's name in the plan. Without the plan, in its order."""
    hosts = Plan(folder)
    names = list(dict.fromkeys(hosts.host_of_rank.values()))
    numbers = [host_number(name) for name in names]
    out = []
    for node, number in enumerate(numbers):
        command = [BIN / "weft-run", *(["--plan", folder] if with_plan else []), "-n", 1, "--nnodes", len(numbers),
                   "--node-rank", node, "--master-addr", fabric.address(numbers[0], v6),
                   "--master-port", MASTER_PORT, "--no-prefix", *more, "--", *words]
        environment = dict(os.environ, WEFT_JOB_SECRET="11" * 32, **({"WEFT_TCP_FAMILY": "ipv6"} if v6 else {}))
        out.append(fabric.start(number, command, env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    return out


def wait_all(programs, limit=120) -> str:
    """What they print together; the first that fails ends them all."""
    deadline = time.monotonic() + limit
    try:
        left = list(programs)
        while left:
            for program in list(left):
                try:
                    program.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    continue
                left.remove(program)
                if program.returncode != 0:
                    raise RuntimeError(f"status {program.returncode}: {program.communicate()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(left)} programs have not ended")
        return "".join(program.communicate()[0] for program in programs)
    finally:
        for program in programs:
            program.kill()
            program.wait()
