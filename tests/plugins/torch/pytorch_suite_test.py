"""PyTorch's own suite for backends, distributed_test.py of its wheel, run on ours.

Named here is every test that Gloo passes on a machine without GPUs (and of all-to-all, for which
the suite asks for MPI, those that it has for the CPU), but for these, which PyTorch 2.11.0 itself
keeps from any backend that is no part of it:

    ddp_logging_data_cpu                  ProcessGroup.hpp:114, backendTypeToString(): every such
                                          backend is "custom", and the test wants "gloo"
    monitored_barrier_gloo,
    monitored_barrier_gloo_subgroup,
    monitored_barrier_failure_order,
    monitored_barrier_wait_all_ranks      distributed_c10d.py:5100, monitored_barrier(): raises
                                          where get_backend() is not "gloo"
"""

import installed

import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest

WITH_OPERATORS = ("max", "min", "product", "sum")


def _each(*stems: str) -> list[str]:
    return [f"{stem}_{operator}" for stem in stems for operator in WITH_OPERATORS]


ON_THREE = """
    Backend_enum_class DistributedDataParallelCPU DistributedDataParallelCPU_grad_is_view
    DistributedDataParallel_requires_grad accumulate_gradients_no_sync
    accumulate_gradients_no_sync_allreduce_hook
    accumulate_gradients_no_sync_allreduce_with_then_hook accumulate_gradients_no_sync_grad_is_view
    all_gather all_gather_coalesced_complex all_gather_coalesced_full_group
    all_gather_coalesced_simple all_gather_coalesced_with_empty all_gather_complex
    all_gather_full_group all_gather_object_default_pg all_gather_object_subgroup
    all_reduce_coalesced_max_complex_unsupported all_reduce_complex_unsupported_ops
    all_reduce_sum_async all_reduce_sum_complex barrier barrier_full_group
    barrier_timeout_full_group batch_isend_irecv_gloo batch_isend_irecv_gloo_tags broadcast
    broadcast_full_group ddp_create_graph destroy_full_group destroy_group
    dump_DDP_relevant_env_vars gather gather_checks gather_full_group get_backend get_future
    get_rank get_rank_size_full_group get_rank_size_group grads_same_across_ranks_with_no_sync irecv
    isend isend_autograd_profiler isend_torch_profiler monitored_barrier_gloo_rank_0_timeout
    reduce_sum_twice scatter scatter_checks scatter_complex scatter_full_group scatter_object_list
    send_recv send_recv_any_source send_recv_any_source_autograd_profiler
    send_recv_any_source_torch_profiler send_recv_autograd_profiler send_recv_torch_profiler
    send_recv_with_tag send_recv_with_tag_autograd_profiler send_recv_with_tag_torch_profiler
    sparse_all_reduce_sum static_graph_api_cpu
""".split() + _each("all_reduce", "all_reduce_full_group", "all_reduce_coalesced",
                    "all_reduce_coalesced_full_group", "reduce", "reduce_full_group")
ON_FOUR = ["gather_object", "gather_object_subgroup", "new_subgroups_with_group_param"]
ALL_TO_ALL = """
    all_to_all all_to_all_complex all_to_all_full_group all_to_all_single_equal_split
    all_to_all_single_equal_split_complex all_to_all_single_equal_split_full_group
    all_to_all_single_unequal_split all_to_all_single_unequal_split_complex
    all_to_all_single_unequal_split_full_group
""".split()
ON_EIGHT = """
    all_gather_group all_gather_coalesced_group barrier_group barrier_timeout_group broadcast_group
    gather_group scatter_group
""".split() + _each("all_reduce_group", "all_reduce_coalesced_group", "reduce_group")
# Their bodies compare the name with "gloo": they keep it, and get our group under it.
NAMED_GLOO = "test_accumulate_gradients_no_sync"


class PyTorchSuite(unittest.TestCase):
    maxDiff = None

    def check(self, world: int, poses_as: str, names: list[str], **environment: str) -> None:
        done = subprocess.run(
            [sys.executable, __file__, "suite", *(f"test_{name}" for name in names)],
            env={**os.environ, "BACKEND": poses_as, "WORLD_SIZE": str(world),
                 "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "120", **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        outcomes = {}
        for line in done.stdout.splitlines():
            with contextlib.suppress(ValueError):
                outcomes.update(json.loads(line))
        self.assertEqual(outcomes.keys(), {f"test_{name}" for name in names}, done.stderr[-4000:])
        wrong = {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}
        self.assertEqual(wrong, {}, done.stderr[-8000:])

    def test_on_3_ranks(self):
        self.check(3, "gloo", ON_THREE)

    def test_the_default_group_made_anew_with_a_timeout_on_3_ranks(self):
        # It meets at the file that INIT_METHOD names when the suite is imported.
        with tempfile.TemporaryDirectory(prefix="weft-suite-") as folder:
            self.check(3, "gloo", ["barrier_timeout_global"], INIT_METHOD=f"file://{folder}/store")

    def test_on_4_ranks(self):
        self.check(4, "gloo", [*ON_THREE, *ON_FOUR])

    def test_all_to_all_on_4_ranks(self):
        self.check(4, "mpi", ALL_TO_ALL)

    @installed.takes_long
    def test_all_on_8_ranks(self):
        self.check(8, "gloo", ON_THREE)  # and ON_EIGHT, below: 106

    def test_on_8_ranks(self):
        self.check(8, "gloo", ON_EIGHT)


# ---- The suite, in a process of its own: it reads BACKEND and WORLD_SIZE when it is imported.


class Outcomes(unittest.TestResult):
    def _say(self, test, outcome: str) -> None:
        print(json.dumps({test.id().rpartition(".")[2]: outcome}), flush=True)

    def addSuccess(self, test):
        self._say(test, "passed")

    def addSkip(self, test, reason):
        self._say(test, f"skipped: {reason}")

    def addError(self, test, error):
        self._say(test, f"failed: {self._exc_info_to_string(error, test)[-3000:]}")

    addFailure = addError  # noqa: N815


POLL = 0.01  # seconds


def _short_sleep(seconds: float) -> None:
    time.sleep(min(seconds, POLL))


def poll_often(suite, processes) -> None:
    """The suite looks every 100 ms whether all ranks have come to a barrier of its own, and whether
    all processes have ended, several times in each of 200 tests. What its tests sleep stays."""
    often = types.SimpleNamespace(**{**vars(time), "sleep": _short_sleep})
    processes.time = often
    sync = suite.Barrier.sync

    def sync_polling_often(*arguments, **named):
        suite.time = often
        try:
            sync(*arguments, **named)
        finally:
            suite.time = time

    suite.Barrier.sync = staticmethod(sync_polling_often)


def suite_class():
    import torch.distributed as dist
    import weft.torch  # noqa: F401

    # PyTorch's test cases derive from a class of this package, and use nothing of it here.
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
    from torch.testing._internal import common_distributed

    for feature in ("ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add("weft")
    from torch.testing._internal.distributed import distributed_test as suite

    for supported in (suite.PROFILING_SUPPORTED_BACKENDS, suite.CUDA_PROFILING_SUPPORTED_BACKENDS,
                      suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        supported.append("weft")
    poll_often(suite, common_distributed)

    class Weft(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            # Forked, and not spawned: PyTorch is loaded here already.
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, test_name, *arguments, **named):
            if test_name.startswith(NAMED_GLOO):
                init = dist.init_process_group
                dist.init_process_group = lambda *a, **n: init(*a, **{**n, "backend": "weft"})
            else:
                suite.BACKEND = os.environ["BACKEND"] = "weft"
            super()._run(rank, test_name, *arguments, **named)

    return Weft


if __name__ == "__main__":
    if sys.argv[1:2] == ["suite"]:
        suite_case = suite_class()
        unittest.TestSuite(suite_case(name) for name in sys.argv[2:]).run(Outcomes())
    else:
        unittest.main()
