"""PyTorch's Store over ours: what its own stores promise, from Python and through the C++ that
Gloo calls; and jobs of two processes that meet at weft:// and redis://."""

import os
import subprocess
import sys
import threading
import unittest
from datetime import timedelta

import servers

servers.with_torch()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import weft.torch  # noqa: E402, F401
import weft.torch.rendezvous as ours  # noqa: E402
from weft.store import Client, Server  # noqa: E402

PATIENCE = timedelta(seconds=servers.PATIENCE)
SHORT = timedelta(milliseconds=20)
SECRET = "ab" * 32


class Operations:
    """One suite; `self.store` and `self.other` are two processes' views of one store."""

    def test_holds_what_was_set(self):
        self.store.set("key", "text")
        self.assertEqual(self.other.get("key"), b"text")
        self.store.set("key", "again")
        self.assertEqual(self.other.get("key"), b"again")
        self.store.set("empty", "")
        self.assertEqual(self.other.get("empty"), b"")
        self.store.set("large", "x" * (1 << 20))
        self.assertEqual(len(self.other.get("large")), 1 << 20)

    def test_adds_to_numbers_that_others_read_as_text(self):
        self.assertEqual(self.store.add("n", 1), 1)
        self.assertEqual(self.other.add("n", 41), 42)
        self.assertEqual(self.store.add("n", -50), -8)
        self.assertEqual(self.store.get("n"), b"-8")
        self.store.set("m", "10")
        self.assertEqual(self.other.add("m", 5), 15)

    def test_compares_and_sets(self):
        self.assertEqual(self.store.compare_set("c", "guess", "new"), b"guess")
        self.assertFalse(self.store.check(["c"]))
        self.assertEqual(self.store.compare_set("c", "", "new"), b"new")
        self.assertEqual(self.other.compare_set("c", "wrong", "newer"), b"new")
        self.assertEqual(self.other.compare_set("c", "new", "newer"), b"newer")
        self.assertEqual(self.store.get("c"), b"newer")

    def test_deletes_and_counts(self):
        before = self.store.num_keys()
        self.store.set("a", "1")
        self.store.set("b", "2")
        self.assertEqual(self.other.num_keys(), before + 2)
        self.assertTrue(self.other.delete_key("a"))
        self.assertFalse(self.store.delete_key("a"))
        self.assertEqual(self.store.num_keys(), before + 1)

    def test_checks_without_waiting(self):
        self.store.set("here", "1")
        self.assertTrue(self.other.check(["here"]))
        self.assertFalse(self.other.check(["here", "not"]))

    def test_appends(self):
        self.store.append("log", "one,")
        self.other.append("log", "two")
        self.assertEqual(self.store.get("log"), b"one,two")

    def test_gets_and_sets_many(self):
        self.assertTrue(self.store.has_extended_api())
        self.store.multi_set(["x", "y", "z"], ["1", "2", "3"])
        self.assertEqual(self.other.multi_get(["z", "x", "y"]), [b"3", b"1", b"2"])

    def test_a_wait_ends_when_all_keys_are_there(self):
        ended = threading.Event()

        def wait():
            self.other.wait(["one", "two"], PATIENCE)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        self.store.set("one", "")
        self.assertFalse(ended.is_set())
        self.store.set("two", "")
        thread.join()
        self.assertTrue(ended.is_set())

    def test_waits_in_vain_are_errors_of_c10d(self):
        for wait in (lambda: self.store.wait(["never"], SHORT),
                     lambda: self.store.wait(["never", "either"], SHORT)):
            with self.assertRaisesRegex(dist.DistStoreError, "never"):
                wait()
        self.store.set_timeout(SHORT)
        self.assertEqual(self.store.timeout, SHORT)
        for wait in (lambda: self.store.get("never"), lambda: self.store.wait(["never"]),
                     lambda: self.store.multi_get(["never"])):
            with self.assertRaises(dist.DistStoreError):
                wait()
        # Late is not lost.
        self.store.set("never", "after all")
        self.assertEqual(self.store.get("never"), b"after all")

    def test_prefixes_keep_keys_apart(self):
        one, two = dist.PrefixStore("one", self.store), dist.PrefixStore("two", self.store)
        one.set("k", "1")
        two.set("k", "2")
        self.assertEqual((one.get("k"), two.get("k")), (b"1", b"2"))
        nested = dist.PrefixStore("inner", one)
        self.assertEqual(nested.add("n", 1), 1)
        self.assertTrue(self.other.check(["one/k", "two/k", "one/inner/n"]))
        self.assertTrue(one.delete_key("k"))
        self.assertTrue(two.check(["k"]))

    def test_a_clone_outlives_its_original(self):
        clone = dist.PrefixStore("p", self.store).clone()
        clone.set("k", "v")
        self.assertEqual(self.other.get("p/k"), b"v")

    def test_many_threads_lose_no_addition(self):
        def add():
            for _ in range(50):
                self.store.add("sum", 1)

        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.other.add("sum", 0), 400)

    def test_what_it_has_not_says_so(self):
        with self.assertRaises(NotImplementedError):
            self.store.queue_push("q", "x")


class WeftTest(Operations, unittest.TestCase):
    def setUp(self):
        server = Server(secret=SECRET)
        self.addCleanup(server.stop)
        self.store, self.other = (ours.Store(Client(server.address, secret=SECRET), PATIENCE)
                                  for _ in range(2))

    def test_everybody_gathers_in_one_round_trip(self):
        gathered = []
        thread = threading.Thread(
            target=lambda: gathered.append(self.other.all_gather("g", 1, 2, "b", PATIENCE)))
        thread.start()
        self.assertEqual(self.store.all_gather("g", 0, 2, "a", PATIENCE), [b"a", b"b"])
        thread.join()
        self.assertEqual(gathered, [[b"a", b"b"]])

    def test_a_lost_server_is_a_network_error(self):
        server = Server()
        store = ours.Store(Client(server.address, reconnect=0.05), PATIENCE)
        server.stop()
        with self.assertRaisesRegex(dist.DistNetworkError, "is gone"):
            store.set("k", "v")


class ThroughCppTest(WeftTest):
    """PrefixStore is C++: every call comes back through c10d's table of virtual functions."""

    def setUp(self):
        super().setUp()
        self.bare = (self.store, self.other)
        self.store, self.other = (dist.PrefixStore("job", store) for store in self.bare)

    def test_everybody_gathers_in_one_round_trip(self):
        self.skipTest("not c10d's")


class RedisTest(Operations, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.redis = servers.Redis.start()
        if cls.redis is None:
            raise unittest.SkipTest("no redis-server")
        cls.addClassCleanup(cls.redis.stop)

    def setUp(self):
        address = f"127.0.0.1:{self.redis.port}"
        self.store, self.other = (ours.Store(Client(address, redis=True, job=self.id()), PATIENCE)
                                  for _ in range(2))


def reduce(init_method: str, **place) -> None:
    """One rank of a job: makes groups, and adds up."""
    dist.init_process_group("gloo", init_method=init_method, timeout=PATIENCE, **place)
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert tensor.eq(size * (size + 1) / 2).all(), tensor
    group = dist.new_group([0, 1])
    dist.all_reduce(tensor, group=group)
    objects = [None] * size
    dist.all_gather_object(objects, f"rank {rank}")
    assert objects == [f"rank {r}" for r in range(size)], objects
    dist.barrier()
    print(RIGHT, flush=True)
    dist.destroy_process_group()


RIGHT = "all is right"
# The end of a process in which a thread of Gloo's is destroyed before it has been joined, which can
# happen while a group or the interpreter ends: no fault of the store.
GLOOS_END = "terminate called without an active exception"


class JobTest(unittest.TestCase):
    """Two processes and Gloo."""

    def check(self, status: int, said: str, error: str, ranks: int):
        self.assertEqual(said.count(RIGHT), ranks, error)
        if GLOOS_END not in error:
            self.assertEqual(status, 0, error)

    def run_ranks(self, init_method: str, **environment):
        """Each is a program of its own, as a job's are."""
        ranks = [subprocess.Popen(
            [sys.executable, "-B", __file__, "rank", init_method, str(rank)],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True)
            for rank in range(2)]
        for rank in ranks:
            said, error = rank.communicate(timeout=servers.PATIENCE * 3)
            self.check(rank.returncode, said, error, ranks=1)

    def test_meets_at_a_weft_store(self):
        server = Server(secret=SECRET)
        self.addCleanup(server.stop)
        self.run_ranks(f"weft://{server.address}?serve=0&job=one", WEFT_JOB_SECRET=SECRET)

    def test_meets_at_redis(self):
        redis = servers.Redis.start()
        if redis is None:
            self.skipTest("no redis-server")
        self.addCleanup(redis.stop)
        self.run_ranks(f"redis://127.0.0.1:{redis.port}?job=one")

    def test_meets_under_weft_run_where_rank_0_or_weft_run_serves(self):
        command = [str(servers.BIN / "weft-run"), "-n", "2", "--", sys.executable, "-B", __file__]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_JOB")}
        for method in ("weft://", "weft://master"):
            done = subprocess.run([*command, "rank", method], env=environment, capture_output=True,
                                  text=True, timeout=servers.PATIENCE * 3, check=False)
            self.check(done.returncode, done.stdout, done.stderr, ranks=2)

    def test_says_what_is_missing_in_an_address(self):
        def meet(url, **place):
            return next(dist.rendezvous(url, **place))

        with self.assertRaisesRegex(ValueError, "port is missing"):
            meet("weft://127.0.0.1", rank=0, world_size=1)
        with self.assertRaisesRegex(ValueError, "RANK"):
            meet("weft://127.0.0.1:1")
        with self.assertRaisesRegex(ValueError, "WEFT_STORE is not set"):
            meet("weft://", rank=0, world_size=1)
        with self.assertRaisesRegex(ValueError, "needs \\?job="):
            meet("redis://127.0.0.1:1", rank=0, world_size=1)
        with self.assertRaisesRegex(ValueError, "knows no srve="):
            meet("weft://127.0.0.1:1?srve=0", rank=0, world_size=1)
        server = Server()
        self.addCleanup(server.stop)
        with self.assertRaisesRegex(dist.DistNetworkError, "serve=0"):
            meet(f"weft://{server.address}", rank=0, world_size=1)


def main():
    if sys.argv[1:2] != ["rank"]:
        unittest.main(verbosity=2)
        return
    method, place = sys.argv[2], {}
    if len(sys.argv) > 3:
        place = {"rank": int(sys.argv[3]), "world_size": 2}
    if method == "weft://master":
        method = f"weft://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    reduce(method, **place)


if __name__ == "__main__":
    main()
