"""weft.store's client and server, without PyTorch."""

import os
import signal
import threading
import time
import unittest
from datetime import timedelta

from servers import PATIENCE, Redis

from weft.store import Client, Server, StoreError, StoreTimeout
from weft.store.client import parse_duration

SECRET = "ab" * 32


class Interrupted(Exception):
    """As KeyboardInterrupt, which a test runner takes for itself."""


def interrupt(*_):
    raise Interrupted


class ClientTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        self.server = Server(secret=SECRET)
        self.addCleanup(self.server.stop)

    def client(self, **options) -> Client:
        client = Client(self.server.address, secret=SECRET, **options)
        self.addCleanup(client.close)
        return client

    def test_holds_any_bytes(self):
        client = self.client()
        for value in (b"", b"\0\xff" * 3, "grün".encode(), os.urandom(1 << 20)):
            client.set("key", value)
            self.assertEqual(client.get("key"), value)
        client.multi_set(["a", b"b\xff"], [b"1", "2"])
        self.assertEqual(client.multi_get(["a", b"b\xff"]), [b"1", b"2"])
        self.assertEqual(client.key_count(), 3)
        self.assertTrue(client.check(["a", "key"]))
        self.assertTrue(client.delete("a"))
        self.assertFalse(client.delete("a"))
        self.assertFalse(client.check(["a", "key"]))
        self.assertEqual(client.add("n", 3), 3)
        self.assertEqual(client.add("n", -5), -2)
        self.assertEqual(client.get("n"), b"-2")
        client.append("log", "x")
        client.append("log", "y")
        self.assertEqual(client.compare_set("log", "xy", "z"), b"z")
        self.assertEqual(client.compare_set("log", "xy", "w"), b"z")

    def test_one_threads_wait_holds_up_no_other(self):
        client = self.client()
        got = []
        thread = threading.Thread(target=lambda: got.append(client.get("later", PATIENCE)))
        thread.start()
        client.set("later", "now")  # would never run, were the interpreter held
        thread.join()
        self.assertEqual(got, [b"now"])

    def test_an_interrupt_ends_every_kind_of_wait_at_once(self):
        client = self.client(rank=0)
        waits = {"get": lambda: client.get("never", PATIENCE),
                 "wait": lambda: client.wait(["never"], PATIENCE),
                 "multi_get": lambda: client.multi_get(["never"], PATIENCE),
                 "barrier": lambda: client.barrier("b", 0, 2, PATIENCE),
                 "all_gather": lambda: client.all_gather("g", 0, 2, "", PATIENCE),
                 "gather": lambda: client.gather("r", 0, 2, 0, "", PATIENCE),
                 "watch": lambda: client.watch("never", 0, PATIENCE)}
        began = time.monotonic()
        for name, wait in waits.items():
            with self.subTest(name), self.assertRaises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                wait()
        # Not at the end of even one of them.
        self.assertLess(time.monotonic() - began, PATIENCE)
        client.set("after", "it")
        self.assertEqual(client.get("after"), b"it")

    def test_a_timeout_that_is_no_number_is_named(self):
        client = self.client()
        with self.assertRaisesRegex(TypeError, "timedelta"):
            client.get("never", timedelta(seconds=1))
        client.set("after", "it")
        self.assertEqual(client.get("after"), b"it")

    def test_an_interrupt_ends_the_wait_for_a_server(self):
        self.server.stop()  # nobody serves there any more
        began = time.monotonic()
        with self.assertRaises(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            Client(self.server.address, secret=SECRET, connect_timeout=PATIENCE)
        self.assertLess(time.monotonic() - began, PATIENCE)

    def test_a_handler_that_returns_ends_no_wait(self):
        handled = []
        previous = signal.signal(signal.SIGALRM, lambda *_: handled.append(1))
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        client, other = self.client(), self.client()

        def give():
            while not handled:
                time.sleep(0.001)
            other.set("late", "value")

        thread = threading.Thread(target=give)
        thread.start()
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        self.assertEqual(client.get("late", PATIENCE), b"value")
        thread.join()

    def test_ranks_meet_and_gather(self):
        clients = [self.client(rank=rank) for rank in range(4)]
        gathered = [None] * 4

        def rank(r):
            gathered[r] = clients[r].all_gather("all", r, 4, f"value {r}", PATIENCE)
            clients[r].barrier("met", r, 4, PATIENCE)

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(gathered, [[b"value 0", b"value 1", b"value 2", b"value 3"]] * 4)
        self.assertEqual(clients[1].gather("one", 1, 2, 0, "b", PATIENCE), [])
        self.assertEqual(clients[0].gather("one", 0, 2, 0, "a", PATIENCE), [b"a", b"b"])

    def test_watches_see_changes(self):
        client = self.client()
        self.assertEqual(client.add("n", 1), 1)
        version, value = client.watch("n", 0, PATIENCE)
        self.assertEqual(value, b"1")
        client.delete("n")
        self.assertEqual(client.watch("n", version, PATIENCE), (0, None))

    def test_errors_have_codes_and_names(self):
        client = self.client(rank=1)
        with self.assertRaises(StoreTimeout) as caught:
            client.barrier("alone", 1, 2, 0.01)
        self.assertIn("1 of 2 ranks missing", str(caught.exception))
        with self.assertRaises(StoreTimeout):
            client.get("never", 0)
        client.set("word", "x")
        with self.assertRaises(StoreError) as caught:
            client.add("word", 1)
        self.assertEqual(caught.exception.code, "FAILED_PRECONDITION")
        for wrong in (lambda: client.add("n", 2**64 + 1),
                      lambda: client.barrier("b", 0, 2**32 + 1, 0)):
            with self.assertRaises(StoreError) as caught:
                wrong()
            self.assertIn("does not fit into", str(caught.exception))
        with self.assertRaises(StoreError) as caught:
            Client(self.server.address, secret="cd" * 32)
        self.assertEqual(caught.exception.code, "PERMISSION_DENIED")
        with self.assertRaises(StoreError) as caught:
            Server("0.0.0.0:0")
        self.assertIn("would serve unauthenticated clients", str(caught.exception))
        client.close()
        with self.assertRaises(StoreError):
            client.set("word", "y")

    def test_a_store_that_is_gone_is_an_error_that_says_so(self):
        client = self.client(reconnect=0.05)
        client.set("k", "v")
        self.server.stop()
        with self.assertRaises(StoreError) as caught:
            client.get("k")
        self.assertEqual(caught.exception.code, "UNAVAILABLE")
        self.assertIn("is gone", str(caught.exception))

    def test_a_forked_process_ends_nobodys_connection(self):
        client = self.client()
        client.set("k", "v")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                client.set("k", "child's")
            except StoreError as error:
                code = 0 if error.code == "FAILED_PRECONDITION" else 2
            client.__del__()
            self.server.stop()
            os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(client.get("k", PATIENCE), b"v")

    def test_durations(self):
        self.assertEqual(parse_duration("1m30s"), 90.0)
        self.assertEqual(parse_duration("500ms"), 0.5)
        for wrong in ("", "5", "s", "5 s", "1x"):
            with self.assertRaises(ValueError):
                parse_duration(wrong)


class RedisClientTest(unittest.TestCase):
    def test_speaks_to_redis(self):
        redis = Redis.start()
        if redis is None:
            self.skipTest("no redis-server")
        self.addCleanup(redis.stop)
        client = Client(f"127.0.0.1:{redis.port}", redis=True, job="one")
        other = Client(f"127.0.0.1:{redis.port}", redis=True, job="two")
        client.set("k", b"\0\xff")
        self.assertEqual(client.get("k"), b"\0\xff")
        self.assertEqual(client.add("n", 2), 2)
        self.assertEqual(other.key_count(), 0)
        with self.assertRaises(StoreTimeout):
            other.wait(["k"], 0.01)


if __name__ == "__main__":
    unittest.main(verbosity=2)
