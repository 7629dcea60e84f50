"""What both levels of the simulator predict of transfers over shaped links is what TCP takes."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import oracle  # noqa: E402
import traffic  # noqa: E402
import workloads  # noqa: E402

MBIT = 20
# Tokens that every link has saved at the start: what `burst` of netns.py is worth, on each of two
# links.
SAVED_SECONDS = 0.04
# The best of so many runs is to be within a factor of two, whatever else the machine does; precise
# figures come from tools/dev bench fabric.
RUNS_MAX, FACTOR_MAX = 3, 2


class WorkloadTest(unittest.TestCase):
    def test_measured_times_are_what_both_levels_predict(self):
        chosen = (workloads.one_flow, workloads.permutation, workloads.incast, workloads.ring_steps)
        with netns.Fabric(leaves=4, spines=2, hosts_per_leaf=2, mbit=MBIT) as fabric:
            for workload in chosen:
                flows = workloads.make(workload, MBIT)
                steps = 1 + max(self.depth(flows, flow) for flow in flows)
                predicted = [oracle.ask(op="simulate", level=level, **oracle.describe(fabric),
                                        flows=[flow.row() for flow in flows])["end"]
                             for level in ("flow", "packet")]
                best = self.best(fabric, workload, FACTOR_MAX * min(predicted))
                print(f"{workload.__name__}: measured {best:.3f} s, predicted "
                      f"{predicted[0]:.3f} and {predicted[1]:.3f} s", flush=True)
                for seconds in predicted:
                    self.assertGreater(best, seconds * 0.98 - SAVED_SECONDS * steps)
                    self.assertLess(best, seconds * FACTOR_MAX)

    def best(self, fabric, workload, enough):
        measured = []
        while len(measured) < RUNS_MAX and min(measured, default=enough) >= enough:
            measured.append(traffic.run(fabric, workloads.make(workload, MBIT)))
        return min(measured)

    def depth(self, flows, flow):
        return 1 + max((self.depth(flows, flows[i]) for i in flow.after), default=-1)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    netns.require_tbf()
    unittest.main(verbosity=2)
