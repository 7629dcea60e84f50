"""weft-run, its relays and weft-store as processes: hosts that meet through relays, and servers that
are killed under a running job. Loopback addresses stand for hosts."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

from processes import BIN, of_job, program, until

sys.path[:0] = [str(BIN.parent / "python"), str(pathlib.Path(__file__).resolve().parents[2])]
from ports import free_port  # noqa: E402
from weft.store import Client  # noqa: E402

PATIENCE = 60
SECRET = "ab" * 32

# What every rank begins with. say() is one line, whole in the log at once.
BEGIN = """
import os, sys, time
from weft.store import Client, StoreError
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
store = Client.from_environment()
"""


class StoreProcessesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.job = f"test-{os.getpid()}-{self.id().rsplit('.', 1)[1]}"[:63]
        self.environment = dict(os.environ, WEFT_JOB_SECRET=SECRET,
                                PYTHONPATH=str(BIN.parent / "python"))

    def tearDown(self):
        until(lambda: not of_job(self.job), PATIENCE)

    def start(self, *command: str) -> subprocess.Popen:
        # Files, so that nobody waits for a reader.
        number = len(os.listdir(self.folder))
        out, error = (open(os.path.join(self.folder, f"{number}.{kind}"), "w", encoding="utf-8")
                      for kind in ("out", "err"))
        with out, error:
            process = subprocess.Popen(command, env=self.environment, stdout=out, stderr=error)
        process.out, process.err = out.name, error.name
        self.addCleanup(process.wait, PATIENCE)
        self.addCleanup(process.kill)
        return process

    @staticmethod
    def read(path: str) -> str:
        with open(path, encoding="utf-8") as file:
            return file.read()

    def store(self, *arguments: str, listen: str = "127.0.0.1:0") -> subprocess.Popen:
        process = self.start(program("weft-store"), "--json", "--listen", listen, *arguments)
        until(lambda: process.poll() is not None or self.lines(process), PATIENCE)
        self.assertIsNone(process.poll(), self.read(process.err))
        process.address = json.loads(self.lines(process)[0])["address"]
        return process

    def state(self, store: subprocess.Popen) -> dict:
        lines = len(self.lines(store))
        store.send_signal(signal.SIGUSR1)
        until(lambda: len(self.lines(store)) > lines, PATIENCE)
        return json.loads(self.lines(store)[-1])

    def until_serves(self, store: subprocess.Popen, **wanted: int) -> None:
        """Until the store's state has these numbers at once: who only asked where to go may be about to leave."""
        seen = {}

        def serves() -> bool:
            seen.update(self.state(store))
            return all(seen[name] == number for name, number in wanted.items())
        try:
            until(serves, PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"the store never had {wanted}, but in the end {seen}") from error

    def run_job(self, *arguments: str, code: str) -> subprocess.Popen:
        return self.start(program("weft-run"), "--job", self.job, "--no-prefix", *arguments, "--",
                          "/usr/bin/python3", "-B", "-c", BEGIN + code)

    def lines(self, process: subprocess.Popen) -> list[str]:
        """Those that are whole."""
        return self.read(process.out).split("\n")[:-1]

    def finish(self, process: subprocess.Popen) -> None:
        status = process.wait(PATIENCE)
        self.assertEqual(status, 0, self.read(process.err) + self.read(process.out))

    def client(self, address: str) -> Client:
        client = Client(address, secret=SECRET, job=self.job, reconnect=PATIENCE)
        self.addCleanup(client.close)
        return client

    # ---- Unauthenticated peers

    def test_unauthenticated_peers_that_take_every_descriptor_keep_nobody_out_and_fill_no_log(self):
        store = self.start("/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh",
                           program("weft-store"), "--json")
        until(lambda: self.lines(store), PATIENCE)
        store.address = json.loads(self.lines(store)[0])["address"]
        host, port = store.address.rsplit(":", 1)
        honest = [self.client(store.address) for _ in range(40)]  # more than half of 64
        peers = [socket.create_connection((host, int(port))) for _ in range(300)]
        self.until_serves(store, accepted=340)
        late = self.client(store.address)
        for number, client in enumerate([*honest, late]):
            client.set(str(number), "v")
        for peer in peers:
            peer.close()
        store.send_signal(signal.SIGTERM)
        self.finish(store)
        log = self.read(store.err).splitlines()
        refused = json.loads(self.read(store.out).splitlines()[-1])["refused"]
        self.assertGreater(refused, 200)
        self.assertLess(len(log), 60, log[:60])
        counts = [int(line.split(": closed ")[1].split()[0])
                  for line in log if " more connections" in line]
        counts += [int(line.split(" (and ")[1].split()[0]) for line in log if " (and " in line]
        self.assertEqual(sum(counts) + sum(" closed the connection of " in line for line in log),
                         refused)

    # ---- The end of a job

    def test_a_rank_that_dies_on_its_way_out_of_a_job_that_is_done_ends_no_job(self):
        # As weft-train does: all have met, and say so; rank 1 dies once rank 0 is gone.
        code = """
if "WEFT_GENERATION" in os.environ:
    say("over" if store.check(["recovery/over"]) else "lost")
    sys.exit(0)
store.set("recovery/over", "")
store.barrier("end", rank, size)
if rank == 0:
    store.set("pid", str(os.getpid()))
    sys.exit(0)
pid = int(store.get("pid"))
while os.path.exists(f"/proc/{pid}"): time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
        launcher = self.run_job("-n", "2", "--recover", "1", code=code)
        self.finish(launcher)
        self.assertEqual(self.lines(launcher), ["over"])

    def test_a_job_that_is_over_in_a_store_that_stays_is_not_run_again(self):
        store = self.store()
        arguments = ("-n", "2", "--recover", "1", "--store", store.address)
        # As weft-train says it.
        self.finish(self.run_job(*arguments, code='store.set("recovery/over", "")'))
        again = self.run_job(*arguments, code="say('runs')")
        self.assertEqual(again.wait(PATIENCE), 1)
        self.assertEqual(self.lines(again), [])
        self.assertIn(f"job '{self.job}' is over in the store at {store.address}",
                      self.read(again.err))

    def test_meetings_of_an_earlier_run_in_a_store_that_stays_are_not_taken_for_this_ones(self):
        store = self.store()
        arguments = ("-n", "2", "--recover", "1", "--store", store.address)
        # As a rank that was started anew says it (collectives/recovery.h); then the run fails.
        failed = self.run_job(*arguments, code="""
if rank == 1: store.set("recovery/epoch", "1 0 0 1")
store.barrier("end", rank, size)
sys.exit(2)
""")
        self.assertEqual(failed.wait(PATIENCE), 2)
        again = self.run_job(*arguments, code="say('runs')")
        self.assertEqual(again.wait(PATIENCE), 1)
        self.assertEqual(self.lines(again), [])
        self.assertIn(f"job '{self.job}' was run before, and started ranks anew, in the store at "
                      f"{store.address}", self.read(again.err))
        # One that starts no rank anew reads none of these keys.
        self.finish(self.run_job("-n", "2", "--store", store.address, code="say('runs')"))

    def test_a_host_may_start_late_into_a_job_of_which_a_rank_was_started_anew(self):
        store = self.store()
        self.client(store.address).set("recovery/epoch", "1 0 0 1")  # of host 0
        late = self.run_job("-n", "2", "--nnodes", "2", "--node-rank", "1", "--master-port",
                            "29500", "--recover", "1", "--store", store.address,
                            code="say('runs')")
        self.finish(late)
        self.assertEqual(self.lines(late), ["runs"] * 2)

    # ---- Relays

    MEET = """
everybody = store.all_gather("all", rank, size, f"rank {rank} of {os.environ['GROUP_RANK']}")
store.wait(["go"])
store.barrier("end", rank, size)
say(*(text.decode() for text in everybody))
"""

    def hosts(self, *arguments: str, count: int = 3, code: str = MEET) -> list[subprocess.Popen]:
        return [self.run_job("-n", "2", "--nnodes", str(count), "--node-rank", str(host),
                             "--master-port", "29500", *arguments, code=code)
                for host in range(count)]

    def test_the_store_sees_hosts_and_not_ranks(self):
        store = self.store(listen="127.0.0.7:0")
        hosts = self.hosts("--store", store.address)
        # All six ranks wait: through three connections.
        self.until_serves(store, waiting=6, connections=3)
        self.client(store.address).set("go", "")
        expected = " ".join(f"rank {rank} of {rank // 2}" for rank in range(6))
        for host in hosts:
            self.finish(host)
            self.assertEqual(self.lines(host), [expected] * 2)

    def test_relays_above_hosts_are_all_that_the_store_sees(self):
        store = self.store(listen="127.0.0.7:0")
        hosts = self.hosts("--store", store.address, "--fan-out", "2", count=5)
        # Hosts 0, 2 and 4 serve a relay above.
        self.until_serves(store, waiting=10, connections=3)
        self.client(store.address).set("go", "")
        expected = " ".join(f"rank {rank} of {rank // 2}" for rank in range(10))
        for host in hosts:
            self.finish(host)
            self.assertEqual(self.lines(host), [expected] * 2)

    def test_large_answers_go_through_relays_above(self):
        store = self.store(listen="127.0.0.7:0")
        hosts = self.hosts("--store", store.address, "--fan-out", "2", count=3, code="""
everybody = store.all_gather("all", rank, size, bytes([rank]) * 50_000)
assert everybody == [bytes([r]) * 50_000 for r in range(size)]
say("right")
""")
        for host in hosts:
            self.finish(host)
            self.assertEqual(self.lines(host), ["right"] * 2)

    def test_without_relays_it_sees_ranks(self):
        store = self.store()
        hosts = self.hosts("--store", store.address, "--no-relay")
        self.until_serves(store, waiting=6, connections=6)
        self.client(store.address).set("go", "")
        for host in hosts:
            self.finish(host)

    def test_one_host_with_a_store_near_by_has_no_relay(self):
        store = self.store()
        job = self.run_job("-n", "2", "--store", store.address, code="say(os.environ['WEFT_STORE'])")
        self.finish(job)
        self.assertEqual(self.lines(job), [store.address] * 2)

    def test_the_first_hosts_launcher_serves_the_others(self):
        for _ in range(10):
            port = free_port()  # somebody may take it in between: then again
            hosts = self.hosts("--master-addr", "127.0.0.9", "--store-port", str(port),
                               code='store.set("go", "")\n' + self.MEET)
            hosts[0].wait(PATIENCE)
            if "taken" in self.read(hosts[0].err) or "in use" in self.read(hosts[0].err):
                for host in hosts:
                    host.kill()
                    host.wait()
                continue
            for host in hosts:
                self.finish(host)
                self.assertEqual(len(self.lines(host)), 2)
            return
        self.fail("no free port")

    def test_a_missing_rank_is_named_with_its_host(self):
        store = self.store()
        code = """
store.barrier("here", rank, size)
if rank == 3:
    store.wait(["end"])
    sys.exit(0)
try:
    store.barrier("b", rank, size, 0.5)
except StoreError as error:
    say(error)
store.add("said", 1)
if rank == 0:
    while store.add("said", 0) < 3: time.sleep(0.01)
    store.set("end", "")
"""
        hosts = self.hosts("--store", store.address, count=2, code=code)
        for host in hosts:
            self.finish(host)
        said = self.lines(hosts[0]) + self.lines(hosts[1])
        self.assertEqual(len(said), 3)
        for line in said:
            self.assertRegex(line, r"of 4 ranks missing after 500ms: .*3 \(.* on "
                             + socket.gethostname())

    # ---- Servers that are killed

    ROUNDS = """
for round in range(60):
    store.barrier(f"round {round}", rank, size)
    store.add("sum", 1)
    if rank == 0: say("round", round)
    if round == 20: store.wait(["go"])
store.barrier("end", rank, size)
assert store.add("sum", 0) == 60 * size, store.get("sum")
assert len(store.all_gather("all", rank, size, "x" * 9000)) == size
"""

    def kill_and_restart(self, *relay: str):
        folder = os.path.join(self.folder, "state")
        # At a port that no socket is given which asks for none, while the store is away.
        store = self.store("--state-dir", folder, listen=f"127.0.0.1:{free_port()}")
        job = self.run_job("-n", "4", "--store", store.address, "--store-patience", f"{PATIENCE}s",
                           *relay, code=self.ROUNDS)
        address = store.address

        def again(dying):
            dying.kill()
            dying.wait()
            return self.store("--state-dir", folder, listen=address)

        # Once while everybody waits for a key, once while rounds go by.
        until(lambda: self.state(store)["waiting"] == 4 and "round 20" in self.lines(job), PATIENCE)
        store = again(store)
        self.client(address).set("go", "")
        until(lambda: "round 24" in self.lines(job), PATIENCE)
        store = again(store)
        self.finish(job)
        self.assertEqual([line for line in self.lines(job) if line.startswith("round")],
                         [f"round {r}" for r in range(60)])

    def test_a_job_goes_on_when_its_store_comes_back_with_its_state(self):
        self.kill_and_restart("--no-relay")

    def test_a_job_goes_on_behind_a_relay_too(self):
        self.kill_and_restart("--relay")

    def test_a_store_goes_on_where_nobody_reads_what_it_says(self):
        store = subprocess.Popen([program("weft-store"), "--json"], env=self.environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(store.wait, PATIENCE)
        self.addCleanup(store.kill)
        store.stdout.readline()
        store.stdout.close()
        store.send_signal(signal.SIGUSR1)  # its state, to nobody
        store.send_signal(signal.SIGTERM)  # taken after it, also where both are pending
        self.assertEqual(store.wait(PATIENCE), 1)  # for what it said is lost

    def test_without_a_state_every_rank_hears_that_the_store_is_gone(self):
        for relay in ("--no-relay", "--relay"):
            store = self.store(listen=f"127.0.0.1:{free_port()}")  # as in kill_and_restart()
            notes = os.path.join(self.folder, f"notes{relay}")
            os.mkdir(notes)
            job = self.run_job("-n", "4", "--store", store.address, "--store-patience",
                               f"{PATIENCE}s", relay, code=f"""
try:
    store.wait(["never"])
except StoreError as error:
    with open(f"{notes}/new-{{rank}}", "w") as file: file.write(f"{{error.code}} {{error}}")
    os.rename(f"{notes}/new-{{rank}}", f"{notes}/{{rank}}")
""")
            until(lambda at=store: self.state(at)["waiting"] == 4, PATIENCE)
            store.kill()
            store.wait()
            self.store(listen=store.address)  # an empty one
            self.finish(job)
            for rank in range(4):
                self.assertRegex(self.read(os.path.join(notes, str(rank))),
                                 r"^UNAVAILABLE .*is gone.* serves an empty one there")


if __name__ == "__main__":
    unittest.main()
