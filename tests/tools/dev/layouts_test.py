"""bench layouts: what its matrix covers, and how far losses may be from one rank's."""

import itertools
import sys
import unittest

from _path import SOURCE

sys.path.insert(0, str(SOURCE / "tests/bench"))
import _layouts


class Matrix(unittest.TestCase):
    def setUp(self):
        self.all = _layouts.matrix()

    def test_every_product_of_the_axes_up_to_eight_ranks_is_there(self):
        self.assertGreaterEqual(len(self.all), 60)
        self.assertEqual(len(set(self.all)), len(self.all))
        there = {(one.tensor, one.context, one.pipeline, one.data) for one in self.all}
        for sizes in itertools.product((1, 2, 4, 8), repeat=4):
            ranks = sizes[0] * sizes[1] * sizes[2] * sizes[3]
            # 4 heads and 4 layers: 8 ranks of these axes have nothing each.
            self.assertEqual(sizes in there, 1 < ranks <= 8 and sizes[0] <= 4 and sizes[2] <= 4, sizes)
        for sizes in ((3, 1, 1, 1), (1, 3, 1, 1), (1, 1, 3, 1), (1, 1, 1, 3), (2, 1, 3, 1), (1, 3, 1, 2)):
            self.assertIn(sizes, there)

    def test_layouts_of_few_ranks_have_every_schedule_and_every_stage_of_zero(self):
        for mesh in _layouts.meshes():
            found = [one for one in self.all if all(getattr(one, axis) == size for axis, size in mesh.items())]
            if found[0].ranks == 8:
                continue
            if mesh["pipeline"] > 1:
                schedules = {one.schedule for one in found}
                self.assertEqual(schedules, {*_layouts.SCHEDULES, "eager-1f1b"}, mesh)
            if mesh["data"] * mesh["context"] > 1:
                self.assertEqual({one.zero for one in found}, {0, 1, 2, 3}, mesh)

    def test_every_kind_is_there_in_both_precisions(self):
        for precision, values in (("fp32", {"recompute": set(_layouts.RECOMPUTE), "expert": {1, 2, 4, 8}}),
                                  ("bf16", {"expert": {1, 2, 4}})):
            ours = [one for one in self.all if one.trained.precision == precision]
            for axis, expected in {"schedule": {"1f1b", "gpipe", "zb-h1"}, "zero": {0, 1, 2, 3},
                                   "method": {"ring", "ulysses"}, "group": {0, 2}, **values}.items():
                self.assertLessEqual(expected, {getattr(one, axis) for one in ours}, (precision, axis))
        self.assertEqual({one.trained.optimizer for one in self.all}, set(_layouts.OPTIMIZERS))


    def test_the_sample_is_of_the_matrix_and_has_every_axis(self):
        found = _layouts.sample()
        self.assertLessEqual(set(found), set(self.all))
        for axis in _layouts.AXES:
            self.assertIn(2, {getattr(one, axis) for one in found}, axis)


class Bounds(unittest.TestCase):
    def test_the_spread_is_the_largest_distance_of_two_orders_so_far(self):
        runs = [{1: 5.0, 2: 4.0, 3: 3.0}, {1: 5.1, 2: 4.3, 3: 3.0}, {1: 4.9, 2: 4.1, 3: 3.1}]
        found = _layouts.spread(runs)
        for step, expected in {1: 0.2, 2: 0.3, 3: 0.3}.items():
            self.assertAlmostEqual(found[step], expected)
        found = _layouts.spread(runs, exact={1: 5.35})
        self.assertAlmostEqual(found[1], 0.45)
        self.assertAlmostEqual(found[3], 0.45)

    def test_a_step_that_is_missing_is_infinitely_far(self):
        self.assertEqual(_layouts.distances({1: 5.0, 2: 4.0}, {1: 5.5}), {1: 0.5, 2: float("inf")})


if __name__ == "__main__":
    unittest.main()
