"""bench overlap: how it chooses links by what a run over unshaped ones says, and what it calls impossible to hide."""

import sys
import unittest

from _path import SOURCE

sys.path.insert(0, str(SOURCE / "tests/bench"))
import _links
from _links import Exchange, Link, Traffic

BOTH = (_links.OUT, _links.IN)


def span(track: str, name: str, begin: float, end: float, size: int | None = None, pid: int = 0) -> dict:
    return {"pid": pid, "track": track, "name": name, "ts": begin * 1e6, "dur": (end - begin) * 1e6,
            "args": {"step": 4} if size is None else {"step": 4, "bytes": size}}


class Choice(unittest.TestCase):
    def test_communication_takes_the_stated_part_of_the_computation_that_could_hide_it(self):
        for part in (0.25, 0.5):
            for traffic in (Traffic(4e6, 8), Traffic(25e6, 100)):
                link = _links.choose(traffic, 1.0, part)
                self.assertEqual(link.delay_us, _links.MOST_DELAY_US)
                self.assertAlmostEqual(_links.seconds_of(traffic, link), part, delta=0.01 * part)

    def test_twice_the_speed_of_computation_takes_twice_the_rate(self):
        slow, fast = (_links.choose(Traffic(10e6, 0), seconds, 0.5).mbit for seconds in (1.0, 0.5))
        self.assertEqual((slow, fast), (160, 320))

    def test_many_turns_shorten_the_delay_so_that_the_rate_has_its_part(self):
        link = _links.choose(Traffic(1e6, 10_000), 1.0, 0.5)
        self.assertEqual(link.delay_us, 12)
        self.assertAlmostEqual(_links.seconds_of(Traffic(1e6, 10_000), link), 0.5, delta=0.01)

    def test_what_is_given_stays(self):
        self.assertEqual(_links.choose(Traffic(10e6, 4), 1.0, 0.5, mbit=300, delay_us=7), Link(300, 7))
        self.assertEqual(_links.choose(Traffic(10e6, 100), 1.0, 0.5, delay_us=0), Link(160, 0))

    def test_rates_stay_where_links_can_be_shaped(self):
        self.assertEqual(_links.choose(Traffic(10e9, 0), 1.0, 0.5).mbit, _links.MOST_MBIT)
        self.assertEqual(_links.choose(Traffic(10.0, 0), 1.0, 0.5).mbit, _links.LEAST_MBIT)
        self.assertEqual(_links.choose(Traffic(1e6, 100_000), 1.0, 0.5, delay_us=50).mbit, _links.MOST_MBIT)

    def test_nothing_to_hide_or_to_hide_it_under_is_an_error_with_both_numbers(self):
        for traffic, compute in ((Traffic(0, 0), 1.0), (Traffic(10, 1), 0.0)):
            with self.assertRaisesRegex(ValueError, f"{traffic.bytes} bytes and {compute:.3g} s"):
                _links.choose(traffic, compute, 0.5)


class OfATrace(unittest.TestCase):
    def test_an_exchange_has_the_computation_between_its_call_and_its_wait(self):
        spans = [span("compute", "forward", 0, 10),
                 span("compute", "wait_norm", 2, 3), span("exposed data", "exposed", 2, 3),  # no exchange follows
                 span("compute", "wait_all_gather", 4, 6), span("exposed data", "exposed", 4, 6),
                 span("communication", "all_gather", 1, 6, 1000),
                 span("compute", "wait_all_gather", 6, 6), span("exposed tensor", "exposed", 6, 6),
                 span("tensor communication", "all_gather", 5, 6, 77),
                 span("compute", "wait_reduce_scatter", 8, 9, pid=1), span("exposed data", "exposed", 8, 9, pid=1),
                 span("communication", "reduce_scatter", 7, 9, 5, pid=1)]
        found = _links.exchanges_of(spans, "data", 2)
        # From 1 to 4, of which 2 to 3 are a wait.
        self.assertEqual(found, [Exchange("all_gather", BOTH, 500, 1, 1.0, 3.0, 4)])

    def test_what_was_called_before_the_first_pass_counts_from_it_on(self):
        spans = [span("compute", "wait_all_gather", 12, 13), span("exposed data", "exposed", 12, 13),
                 span("communication", "all_gather", 5, 13, 8), span("compute", "forward", 10, 20)]
        (one,) = _links.exchanges_of(spans, "data", 2)
        self.assertEqual((one.posted, one.needed), (10, 12))

    def test_bytes_over_a_link_follow_from_the_kind_of_exchange(self):
        for name, ranks, expected in (("all_gather", 4, (BOTH, 75, 3)), ("reduce_scatter", 2, (BOTH, 50, 1)),
                                      ("all_reduce", 4, (BOTH, 150, 6)), ("all_to_all", 2, (BOTH, 50, 1)),
                                      ("dispatch", 2, (BOTH, 100, 1)), ("send", 2, ((_links.OUT,), 100, 1)),
                                      ("receive", 2, ((_links.IN,), 100, 1))):
            self.assertEqual(_links.load_of(name, 100, ranks), expected, name)

    def test_computation_that_could_hide_several_exchanges_counts_once(self):
        exchanges = [Exchange("a", BOTH, 1, 1, begin, end) for begin, end in ((0, 4), (1, 3), (2, 6), (8, 9))]
        self.assertAlmostEqual(_links.hideable(exchanges), 7)

    def test_ways_of_a_link_carry_at_the_same_time(self):
        exchanges = [Exchange("send", (_links.OUT,), 100, 1, 0, 1), Exchange("receive", (_links.IN,), 70, 1, 0, 1),
                     Exchange("receive", (_links.IN,), 70, 1, 0, 1)]
        self.assertEqual(_links.traffic_of(exchanges), Traffic(140, 2))


class Stalls(unittest.TestCase):
    LINK = Link(8, 0)  # 1 MB/s

    def test_an_exchange_stalls_for_what_its_computation_is_too_short_for(self):
        hidden, cut, bare = ([Exchange("one", BOTH, 2e6, 1, 0, needed)] for needed in (2.5, 0.5, 0))
        self.assertEqual(_links.stalls(hidden, self.LINK), [0])
        self.assertAlmostEqual(_links.stalls(cut, self.LINK)[0], 1.5)
        self.assertAlmostEqual(_links.stalls(bare, Link(8, 500_000))[0], 2.5)

    def test_a_stall_lets_what_is_under_way_go_on(self):
        exchanges = [Exchange("first", BOTH, 2e6, 1, 0, 0), Exchange("next", BOTH, 2e6, 1, 0.0, 1.0),
                     Exchange("last", BOTH, 1e6, 1, 1.0, 1.0)]
        found = _links.stalls(exchanges, self.LINK)
        # The first ends at 2, the next at 4, needed at 1 + 2; the last is called at 4, behind all stalls.
        self.assertEqual([round(value, 6) for value in found], [2, 1, 1])


class Pipelines(unittest.TestCase):
    SECONDS = {"forward": 1.0, "backward": 2.0}

    def exposed(self, schedule: str, micro_batches: int, chunks: int, message: float) -> float:
        waits = [_links.waits_of_first_stage(schedule, 2, micro_batches, chunks, self.SECONDS, each)
                 for each in (message, 0.0)]
        return waits[0] - waits[1]

    def test_without_messages_the_first_stage_waits_for_the_bubble(self):
        self.assertAlmostEqual(_links.waits_of_first_stage("gpipe", 2, 8, 1, self.SECONDS, 0), 3)
        self.assertAlmostEqual(_links.waits_of_first_stage("1f1b", 2, 8, 1, self.SECONDS, 0), 3)
        self.assertAlmostEqual(_links.waits_of_first_stage("eager-1f1b", 2, 8, 1, self.SECONDS, 0), 3)
        self.assertAlmostEqual(_links.waits_of_first_stage("interleaved", 2, 8, 2, self.SECONDS, 0), 3)

    def test_gpipe_exposes_the_first_message_each_way_however_many_follow(self):
        for micro_batches in (4, 32):
            self.assertAlmostEqual(self.exposed("gpipe", micro_batches, 1, 0.5), 1.0)

    def test_1f1b_of_two_stages_exposes_a_message_of_every_micro_batch(self):
        # Of two micro-batches that are under way, each runs through both stages and waits for two messages meanwhile.
        for micro_batches in (8, 32):
            self.assertAlmostEqual(self.exposed("1f1b", micro_batches, 1, 0.25), micro_batches * 0.25)

    def test_eager_1f1b_exposes_the_first_and_the_last_message(self):
        for micro_batches in (8, 32):  # up to half a forward and a backward pass
            self.assertAlmostEqual(self.exposed("eager-1f1b", micro_batches, 1, 1.5), 2 * 1.5)

    def test_interleaved_hides_messages_under_the_other_chunk(self):
        few, many = (self.exposed("interleaved", count, 2, 0.5) for count in (8, 32))
        self.assertAlmostEqual(few, many)

    def test_passes_are_those_of_the_schedule(self):
        order = [(kind[0], chunk, micro) for kind, chunk, micro in _links.passes_of("interleaved", 0, 2, 2, 2)]
        self.assertEqual(order, [("f", 0, 0), ("f", 0, 1), ("f", 1, 0), ("f", 1, 1), ("b", 1, 0), ("b", 1, 1),
                                 ("b", 0, 0), ("b", 0, 1)])
        order = [(kind[0], micro) for kind, _, micro in _links.passes_of("1f1b", 0, 2, 3, 1)]
        self.assertEqual(order, [("f", 0), ("f", 1), ("b", 0), ("f", 2), ("b", 1), ("b", 2)])
        order = [(kind[0], micro) for kind, _, micro in _links.passes_of("eager-1f1b", 0, 2, 4, 1)]
        self.assertEqual(order, [("f", 0), ("f", 1), ("f", 2), ("b", 0), ("f", 3), ("b", 1), ("b", 2), ("b", 3)])


if __name__ == "__main__":
    unittest.main()
