"""A leaf-spine fabric of network namespaces: Linux routers with real ECMP, links shaped by tbf.

    enter()                  at the start of a program: runs the rest where nothing is left behind
    with Fabric(...) as f:   4 leaves, 2 spines, ...
        f.run(host, [...])   a command on a host

enter() starts the program again as the first process of its own PID, mount and network namespaces,
which dies with its parent, whatever kills that; with it go all processes, names and interfaces.
Names need not be unique, the machine's own network is never touched, and there is nothing to clean
up.

Every leaf reaches every other leaf through a group of next hops, one a spine, in their order.
Neighbours are permanent: a next hop whose neighbour is being resolved counts as dead to the kernel,
which would then hash other than predicted.

    host k of leaf l: 10.1.l.(k+1), fd01::l:(k+1)     leaf l - spine s: 10.2.(l*16+s).0 and .1
    its NIC n, eth<n>, of several: 10.1.l.(k+1+100n), of IPv4 alone, under the same leaf
"""

import ctypes
import os
import pathlib
import shutil
import signal
import subprocess
import sys

CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1
SKIPPED = 77
INSIDE = "WEFT_FABRIC_INSIDE"


def skip(reason: str) -> None:
    print(f"skipped: {reason}", flush=True)
    raise SystemExit(SKIPPED)


def enter() -> None:
    """Returns only inside; the outer process waits and passes on the exit status."""
    if os.environ.get(INSIDE):
        return
    for program in ("ip", "tc", "sysctl", "mount"):
        if shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
            skip(f"there is no program {program}")
    if os.geteuid() != 0:
        skip("network namespaces need root")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET) != 0:
        skip(f"no namespaces here: unshare: {os.strerror(ctypes.get_errno())}")
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() not in (0, parent):  # it died before the line above; 0: seen from within
            os._exit(1)
        _private_mounts()
        os.environ[INSIDE] = "1"
        os.environ["PATH"] = "/usr/sbin:/sbin:/usr/bin:/bin:" + os.environ.get("PATH", "")
        # The first process of a PID namespace ignores signals without a handler, and inherits
        # orphans.
        inner = os.fork()
        if inner == 0:
            os.execv(sys.executable, [sys.executable, "-B", *sys.argv])
        raise SystemExit(_wait_for(inner))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGKILL))
    raise SystemExit(_status(os.waitpid(child, 0)[1]))


def _wait_for(child: int) -> int:
    while True:  # others are orphans that end here
        ended, status = os.wait()
        if ended == child:
            return _status(status)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _private_mounts() -> None:
    run = ["mount", "--make-rprivate", "/"], ["mount", "-t", "proc", "proc", "/proc"]
    for command in run:
        subprocess.run(command, check=True)
    os.makedirs("/run/netns", exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)


def call(command: list, text: str = "") -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, input=text, text=True, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: "
                           f"{done.stderr.strip() or done.stdout.strip()}\n{text}")
    return done.stdout


def has_seed() -> bool:
    return pathlib.Path("/proc/sys/net/ipv4/fib_multipath_hash_seed").exists()


class Fabric:
    """`mbit` of each link between switches, both ways; None: not shaped. `spine_mbit`: of those to spines that differ,
    {spine: mbit}. `seeds`: of leaves. `fields`: what they hash with policy 3. `loopbacks`: between switches, IPv6 has
    link-local addresses alone, as of BGP unnumbered, and each switch an address of its own, fd03::. `nics`: of a host.
    `host_mbit`: of each NIC, both ways; None: not shaped. `burst_ms`: what an idle link saves of its rate."""

    def __init__(self, leaves=2, spines=2, hosts_per_leaf=2, mbit=None, seeds=None, policy=3,
                 queue_ms=300, fields=0x37, loopbacks=False, spine_mbit=None, nics=1, host_mbit=None, burst_ms=20):
        self.leaves, self.spines, self.hosts_per_leaf = leaves, spines, hosts_per_leaf
        self.mbit, self.queue_ms, self.policy = mbit, queue_ms, policy
        self.spine_mbit, self.fields, self.loopbacks = spine_mbit or {}, fields, loopbacks
        self.seeds = seeds or [1000 + leaf for leaf in range(leaves)]
        self.hosts = leaves * hosts_per_leaf
        self.nics, self.host_mbit, self.burst_ms = nics, host_mbit, burst_ms

    def __enter__(self):
        self._links, self._inside, self._tbf = [], {}, []
        for kind, count in (("l", self.leaves), ("s", self.spines), ("h", self.hosts)):
            for number in range(count):
                self._inside[f"{kind}{number}"] = []
        for host in range(self.hosts):
            self._attach(host)
            for nic in range(1, self.nics):
                self._attach_more(host, nic)
        for leaf in range(self.leaves):
            for spine in range(self.spines):
                self._cable(leaf, spine)
            self._group(leaf)
        for kind, count in (("l", self.leaves), ("s", self.spines)) if self.loopbacks else ():
            for number in range(count):
                self._inside[f"{kind}{number}"].append(
                    f"-6 addr add fd03::{ord(kind):x}:{number:x}/128 dev lo nodad")
        self._apply()
        return self

    def __exit__(self, *_):
        names = "".join(f"netns del {name}\n" for name in self._inside)
        subprocess.run(["ip", "-force", "-batch", "-"], input=names, text=True, capture_output=True)

    # ---- names and addresses

    def leaf_of(self, host):
        return host // self.hosts_per_leaf

    def address(self, host, v6=False, nic=0):
        leaf, port = self.leaf_of(host), host % self.hosts_per_leaf + 1 + 100 * nic
        return f"fd01::{leaf:x}:{port:x}" if v6 else f"10.1.{leaf}.{port}"

    @staticmethod
    def spine_address(leaf, spine):
        return f"10.2.{leaf * 16 + spine}.1"

    # ---- building

    @staticmethod
    def _mac(kind, a, b=0):
        return f"02:00:00:{kind:02x}:{a:02x}:{b:02x}"

    @staticmethod
    def _link_local(kind, a, b):
        """What the kernel gives a device with that _mac()."""
        return f"fe80::ff:fe{kind:02x}:{a:02x}{b:02x}"

    def _pair(self, ns_a, dev_a, mac_a, ns_b, dev_b, mac_b):
        self._links.append(f"link add {dev_a} netns {ns_a} address {mac_a} type veth "
                           f"peer name {dev_b} netns {ns_b} address {mac_b}")
        self._inside[ns_a].append(f"link set {dev_a} up")
        self._inside[ns_b].append(f"link set {dev_b} up")

    def _attach(self, host):
        leaf, ns = self.leaf_of(host), f"h{host}"
        near, far = self._mac(1, host), self._mac(2, host)
        self._pair(ns, "eth0", near, f"l{leaf}", ns, far)
        self._shape_nic(host, "eth0", ns)
        for family, gateway, bits in (("", "169.254.1.1", 32), ("-6 ", "fe80::1", 128)):
            own = self.address(host, v6=bool(family))
            nodad = " nodad" if family else ""
            self._inside[ns] += [f"{family}addr add {own}/{bits} dev eth0{nodad}",
                                 f"{family}neigh add {gateway} lladdr {far} dev eth0 nud permanent",
                                 f"{family}route add default via {gateway} dev eth0 onlink"]
            self._inside[f"l{leaf}"] += [
                f"{family}neigh add {own} lladdr {near} dev {ns} nud permanent",
                f"{family}route add {own}/{bits} dev {ns}"]

    def _shape_nic(self, host, device, port):
        if self.host_mbit:
            self._tbf += [(f"h{host}", device, self.host_mbit), (f"l{self.leaf_of(host)}", port, self.host_mbit)]

    def _attach_more(self, host, nic):
        """What leaves from the NIC's address leaves by the NIC."""
        leaf, ns, device = self.leaf_of(host), f"h{host}", f"h{host}n{nic}"
        near, far, own = self._mac(5, host, nic), self._mac(6, host, nic), self.address(host, nic=nic)
        self._pair(ns, f"eth{nic}", near, f"l{leaf}", device, far)
        self._shape_nic(host, f"eth{nic}", device)
        table = 100 + nic
        self._inside[ns] += [f"addr add {own}/32 dev eth{nic}",
                             f"neigh add 169.254.1.1 lladdr {far} dev eth{nic} nud permanent",
                             f"route add default via 169.254.1.1 dev eth{nic} onlink table {table}",
                             f"rule add from {own} lookup {table}"]
        self._inside[f"l{leaf}"] += [f"neigh add {own} lladdr {near} dev {device} nud permanent",
                                     f"route add {own}/32 dev {device}"]

    def _cable(self, leaf, spine):
        l_ns, s_ns, net = f"l{leaf}", f"s{spine}", leaf * 16 + spine
        near, far = self._mac(3, leaf, spine), self._mac(4, leaf, spine)
        self._pair(l_ns, s_ns, near, s_ns, l_ns, far)
        for family, down, up, bits, hosts in (
                ("", f"10.2.{net}.0", f"10.2.{net}.1", 31, f"10.1.{leaf}.0/24"),
                ("-6 ", f"fd02::{net:x}:0", f"fd02::{net:x}:1", 127, f"fd01::{leaf:x}:0/112")):
            nodad = " nodad" if family else ""
            if family and self.loopbacks:
                down, up = self._link_local(3, leaf, spine), self._link_local(4, leaf, spine)
            else:
                self._inside[l_ns].append(f"{family}addr add {down}/{bits} dev {s_ns}{nodad}")
                self._inside[s_ns].append(f"{family}addr add {up}/{bits} dev {l_ns}{nodad}")
            self._inside[l_ns].append(f"{family}neigh add {up} lladdr {far} dev {s_ns} nud permanent")
            self._inside[s_ns] += [
                f"{family}neigh add {down} lladdr {near} dev {l_ns} nud permanent",
                f"{family}route add {hosts} via {down} dev {l_ns}"]
        if self.mbit:
            mbit = self.spine_mbit.get(spine, self.mbit)
            self._tbf += [(l_ns, s_ns, mbit), (s_ns, l_ns, mbit)]

    def _group(self, leaf):
        lines = self._inside[f"l{leaf}"]
        for family, first, subnet in (("", 1, "10.1.0.0/16"), ("-6 ", 101, "fd01::/64")):
            for spine in range(self.spines):
                net = leaf * 16 + spine
                via = f"fd02::{net:x}:1" if family else f"10.2.{net}.1"
                if family and self.loopbacks:
                    via = self._link_local(4, leaf, spine)
                lines.append(f"{family}nexthop add id {first + spine} via {via} dev s{spine}")
            members = "/".join(str(first + spine) for spine in range(self.spines))
            lines += [f"nexthop add id {first + 49} group {members}",
                      f"{family}route add {subnet} nhid {first + 49}"]

    def _sysctls(self, name):
        out = ["net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0",
               "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0",
               "net.ipv4.icmp_ratelimit=0", "net.ipv4.icmp_msgs_per_sec=100000",
               "net.ipv6.icmp.ratelimit=0",
               "net.ipv4.tcp_tw_reuse=1", "net.ipv4.tcp_slow_start_after_idle=0"]
        if name[0] != "h":
            out += ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]
        if name[0] == "l":
            for family in ("ipv4", "ipv6"):
                out += [f"net.{family}.fib_multipath_hash_policy={self.policy}",
                        f"net.{family}.fib_multipath_hash_fields={self.fields}"]
            if has_seed():
                out.append(f"net.ipv4.fib_multipath_hash_seed={self.seeds[int(name[1:])]}")
        return out

    def _apply(self):
        call(["ip", "-batch", "-"], "".join(f"netns add {name}\n" for name in self._inside))
        for name in self._inside:
            self.at(name, ["sysctl", "-qw", *self._sysctls(name)])
            self._inside[name].insert(0, "link set lo up")
        call(["ip", "-batch", "-"], "\n".join(self._links) + "\n")
        # A next hop needs a carrier, which comes once both ends are up; a group has no family.
        stages = (lambda line: line.startswith("link "),
                  lambda line: line.startswith("-6 ") and " nhid " not in line,
                  lambda line: not line.startswith(("link ", "-6 ")),
                  lambda line: line.startswith("-6 ") and " nhid " in line)
        for family, stage in zip(([], ["-6"], [], ["-6"]), stages):
            for name, lines in self._inside.items():
                batch = "".join(line.removeprefix("-6 ") + "\n" for line in filter(stage, lines))
                if batch:
                    call(["ip", *family, "-netns", name, "-batch", "-"], batch)
        for name, device, mbit in self._tbf:
            self.shape(name, device, mbit, self.burst_ms)

    # ---- use

    @staticmethod
    def at(name, command, **more):
        return call(["ip", "netns", "exec", name, *command], **more)

    def run(self, host, command, **more):
        return self.at(f"h{host}", command, **more)

    def start(self, host, command, **more):
        words = ["ip", "netns", "exec", f"h{host}", *command]
        return subprocess.Popen([str(word) for word in words], **more)

    def shape(self, name, device, mbit, burst_ms=20):
        # What the rate gives in 20 ms: a timer that a busy machine serves late costs no rate then,
        # and a run of a second gains at most 2 %.
        burst = max(16000, int(mbit * 1e6 / 8 * burst_ms / 1e3))
        self.at(name, ["tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                       f"{mbit}mbit", "burst", burst, "latency", f"{self.queue_ms}ms"])

    def link(self, leaf, spine, up):
        """The leaf's side: its group loses or regains the next hop, as routing would have it."""
        ns, device, net = f"l{leaf}", f"s{spine}", leaf * 16 + spine
        self.at(ns, ["ip", "link", "set", device, "up" if up else "down"])
        if not up:
            return
        # What the kernel has forgotten of a link that was down, for IPv4.
        call(["ip", "-netns", ns, "-batch", "-"], "".join(line + "\n" for line in (
            f"neigh replace 10.2.{net}.1 lladdr {self._mac(4, leaf, spine)} dev {device} nud permanent",
            f"nexthop replace id {1 + spine} via 10.2.{net}.1 dev {device}",
            f"nexthop replace id 50 group {'/'.join(str(1 + one) for one in range(self.spines))}")))

    def counters(self):
        """Bytes that each leaf has sent to each spine: [leaf][spine]."""
        out = []
        for leaf in range(self.leaves):
            of_leaf = []
            for spine in range(self.spines):
                path = f"/sys/class/net/s{spine}/statistics/tx_bytes"
                of_leaf.append(int(self.at(f"l{leaf}", ["cat", path])))
            out.append(of_leaf)
        return out

    def ask(self, leaf, tuples, v6=False):
        """Which spine the leaf's kernel would take, of (source, target, port, port, protocol).

        Tuples that it does not route through a spine give None.
        """
        host = f"h{leaf * self.hosts_per_leaf}"
        lines = "".join(f"route get {target} from {source} iif {host} ipproto {protocol} "
                        f"sport {sport} dport {dport}\n"
                        for source, target, sport, dport, protocol in tuples)
        family = ["-6"] if v6 else []
        text = call(["ip", "-netns", f"l{leaf}", *family, "-o", "-batch", "-"], lines)
        out = []
        for line in text.splitlines():
            if " dev " in line:
                device = line.split(" dev ")[1].split()[0]
                out.append(int(device[1:]) if device[0] == "s" else None)
        if len(out) != len(tuples):
            raise RuntimeError(f"ip answered {len(out)} of {len(tuples)} questions:\n{text[:500]}")
        return out


def require_tbf() -> None:
    """Inside: skips where links cannot be shaped."""
    call(["ip", "link", "add", "tbf0", "type", "veth", "peer", "name", "tbf1"])
    try:
        call(["tc", "qdisc", "add", "dev", "tbf0", "root", "tbf", "rate", "10mbit", "burst", 16000,
              "latency", "50ms"])
    except RuntimeError as error:
        skip(f"no tbf queues here: {error}")
    finally:
        call(["ip", "link", "del", "tbf0"])


def why_no_netem() -> str:
    """Inside: empty where links can have a delay (netem), else what the kernel says."""
    call(["ip", "link", "add", "netem0", "type", "veth", "peer", "name", "netem1"])
    try:
        call(["tc", "qdisc", "add", "dev", "netem0", "root", "netem", "delay", "1ms"])
    except RuntimeError as error:
        return " ".join(str(error).split())
    finally:
        call(["ip", "link", "del", "netem0"])
    return ""


def require_routers() -> None:
    """Inside: skips where there is no veth or no ECMP with a seed."""
    try:
        call(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"])
        call(["ip", "link", "del", "probe0"])
    except RuntimeError as error:
        skip(f"no veth devices here: {error}")
    if not has_seed():
        skip("this kernel has no net.ipv4.fib_multipath_hash_seed (Linux 6.11): "
             "hashes cannot be predicted")
