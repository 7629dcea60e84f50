"""torchrun under weft-driver: an agent is a host of its job, and the driver decides.

    weft-driver --nodes 2 --ranks 1 --job run-17 --listen :29501 --state-dir state
    torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=1000 --rdzv-backend=weft-driver \\
        --rdzv-endpoint=node0:29501 --rdzv-id=run-17 train.py        # on every host, spares too

To the driver the workers of one agent are one rank (--ranks 1). An agent's next_rendezvous() tells
how its workers ended and waits until the driver has a place for them; a host without one is a spare.
Whatever the driver starts anew begins a new round, in which all agents start their workers again,
as torchrun's agents do. So the driver's decisions hold: back-off, the same error twice, devices
that fail, self-tests, spares, hosts that are lost, eviction by hand, and what a site is told.

The secret comes from WEFT_JOB_SECRET. --rdzv-conf takes host= (this host's name in the job; default:
its own), address= (where others reach it), rack= and join_timeout= (seconds for the driver to be
there, 300). Installing the wheel registers it (weft/_torchrun.py).
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from weft.store import Client, StoreError, StoreTimeout
from weft.torch.rendezvous import Store

_DEFAULT_PORT = 29501
_DEFAULT_TIMEOUT_S = 300
_PERIOD_S = 0.25
_SELF_TEST_S = 60
_DRIVER_BACK_S = 120  # in which a driver that died comes back
_STATE, _HOSTS, _BELL = "driver/state", "driver/hosts", "driver/bell"
_CAUSE_MOST = 500  # characters
_Round = tuple[int, ...]


def create(params: RendezvousParameters) -> RendezvousHandler:
    """A host of the job that the driver at params.endpoint has. Raises RendezvousConnectionError where
    no driver of that job answers within join_timeout, or it runs without --ranks 1."""
    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=_DEFAULT_PORT)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    timeout = params.get_as_int("join_timeout", _DEFAULT_TIMEOUT_S) or _DEFAULT_TIMEOUT_S
    name = params.get("host", socket.gethostname())
    try:
        client = Client(address, secret=os.environ.get("WEFT_JOB_SECRET", ""), job=params.run_id,
                        connect_timeout=timeout, reconnect=_DRIVER_BACK_S)
        return DriverRendezvousHandler(client, params.run_id, name, params.get("address", name),
                                       params.get("rack", ""), timeout)
    except StoreError as error:
        raise RendezvousConnectionError(f"weft-driver at {address}: {error}") from error


def end_text(result) -> str:
    """How a worker group ended, as the driver reads it (collectives/process_end.h). Of several
    workers, one that was killed is the cause; others fail because they lost it."""
    failures = sorted(result.failures.values(), key=lambda failure: (failure.exitcode >= 0,
                                                                     failure.timestamp))
    if not failures:
        return "exited with status 0"
    first = failures[0]
    if first.exitcode < 0:
        number = -first.exitcode
        # Of real-time signals only the first and the last have a name.
        name = f" ({signal.Signals(number).name})" if number in set(signal.Signals) else ""
        return f"was killed by signal {number}{name}"
    lines = [line for line in str(first.message).splitlines() if line.strip()]
    cause = "".join(c for c in (lines[-1] if lines else "") if c.isprintable())[:_CAUSE_MOST]
    return f"exited with status {first.exitcode}" + (f": {cause}" if cause else "")


def _watch_workers(take) -> None:
    """Has `take` called with each result of an agent's workers that have ended: what torchrun tells a
    rendezvous handler does not say how."""
    monitor = LocalElasticAgent._monitor_workers

    def watched(agent, *arguments, **named):
        result = monitor(agent, *arguments, **named)
        if result.state.name in ("FAILED", "SUCCEEDED"):
            take(result)
        return result

    LocalElasticAgent._monitor_workers = watched  # type: ignore[method-assign]


class DriverRendezvousHandler(RendezvousHandler):
    """One host of a weft-driver's job. A thread beats; the others' calls come from torchrun's."""

    def __init__(self, client: Client, run_id: str, host: str, address: str, rack: str,
                 timeout: float):
        self._client, self._run_id, self._host = client, run_id, host
        self._changed = threading.Condition()
        self._state = json.loads(client.get(_STATE, timeout))
        if self._state["policy"]["ranks_per_node"] != 1:
            raise RendezvousConnectionError("weft-driver has to run with --ranks 1: to it, the "
                                            "workers of a torchrun are one rank")
        self._lease = self._state["lease"] / 1e6
        self._report: dict[str, Any] = {
            "incarnation": 1, "writer": secrets.token_hex(16), "beat": 0, "address": address,
            "rack": rack, "lease": self._state["lease"], "agent": "", "agent_token": "", "pid": os.getpid(), "leaves": False,
            "over": False, "spares": 0, "bytes": 0, "ranks": [], "test": 0, "passed": False,
            "untested": False, "test_text": "", "replay": 0, "digests": [], "replay_text": "", "findings": [],
            "recoveries": []}
        self._round: _Round | None = None  # generations of all ranks, that the workers run in
        self._node = -1            # of that round
        self._result = None        # of the workers, once they have ended
        self._problem: str | None = None  # why this host is out
        self._urgent = self._ends = False
        self._contact = time.monotonic()
        self._told = b""
        self._join()
        _watch_workers(self._take_result)
        self._threads = [threading.Thread(target=run, daemon=True)
                         for run in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()

    # ---- What torchrun calls

    def get_backend(self) -> str:
        return "weft-driver"

    @property
    def use_agent_store(self) -> bool:
        return False  # rank 0 serves one

    def get_run_id(self) -> str:
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        with self._changed:
            ended = self._round is not None and self._result is not None
            if ended:
                self._tell_end(end_text(self._result))
            node, before = self._node, self._round
            self._round = self._result = None
            while True:
                self._raise_if_out()
                current = self._current()
                # An end that the driver has not answered yet begins a new round once more.
                answered = not (ended and current is not None and before is not None
                                and current[0] == node and current[1][node] == before[node])
                if current is not None and current[1] != before and answered:
                    break
                self._changed.wait(1)
            self._node, now = current
            self._round = now
            self._report["ranks"] = [self._rank(alive=True, end="")]
            self._urgent = True
            self._changed.notify_all()
        name = "torch/" + ".".join(map(str, now))
        store = dist.PrefixStore(name, Store(self._client, timedelta(seconds=_DEFAULT_TIMEOUT_S)))
        address = self._report["address"]
        where = RendezvousStoreInfo.build(self._node, store, local_addr=address)
        return RendezvousInfo(store, self._node, len(now), where)

    def is_closed(self) -> bool:
        with self._changed:
            return self._problem is not None or self._is_over()

    def set_closed(self) -> None:
        pass  # the driver alone ends its job

    def num_nodes_waiting(self) -> int:
        """Above 0: the workers have to meet anew."""
        with self._changed:
            if self._round is None:
                return 0
            if self._problem is not None or time.monotonic() - self._contact > self._lease:
                return 1
            # While the rank that ended waits for its start, its peers go on waiting for it.
            generations = tuple(rank["generation"] for rank in self._state["job"]["ranks"])
            return int(self._is_over() or self._place() != self._node
                       or generations != self._round)

    def shutdown(self) -> bool:
        """At torchrun's end: the workers have all succeeded, or torchrun gives up."""
        with self._changed:
            if self._round is not None and self._result is not None:
                self._tell_end(end_text(self._result))
            succeeded = self._result is not None and self._result.state.name == "SUCCEEDED"
            self._report["leaves"] = not succeeded and not self._is_over()
            self._report["over"] = self._is_over()
            self._urgent = self._ends = True
            self._changed.notify_all()
        self._threads[0].join(self._lease)
        return True

    # ---- What the driver says

    def _is_over(self) -> bool:
        return "outcome" in self._state["job"]

    def _me(self):
        """This host as the driver has it; None: it has not joined yet, or was counted as lost."""
        me = self._state["job"]["hosts"].get(self._host)
        return me if me is not None and me["incarnation"] >= self._report["incarnation"] else None

    def _place(self) -> int:
        me = self._me()
        return -1 if me is None or me["evicted"] else me["node"]

    def _current(self) -> tuple[int, _Round] | None:
        """The node of this host and the generations of all ranks, where all ought to run."""
        ranks, node = self._state["job"]["ranks"], self._place()
        if node < 0 or not all(rank["runs"] for rank in ranks):
            return None
        return node, tuple(rank["generation"] for rank in ranks)

    def _raise_if_out(self) -> None:
        job = self._state["job"]
        if self._is_over():
            if job["outcome"]["exit_status"] == 0:
                raise RendezvousGracefulExitError("the job is over")
            raise RendezvousClosedError(f"the job is over: {job['outcome']['reason']}")
        me = self._me()
        if me is not None and me["incarnation"] > self._report["incarnation"]:
            raise RendezvousClosedError(f"another torchrun has joined as {self._host}")
        if me is not None and me["evicted"]:
            raise RendezvousClosedError(f"{self._host} is evicted: {me['reason']}")
        if self._problem is not None:
            raise RendezvousConnectionError(self._problem)

    # ---- What the driver is told

    def _rank(self, alive: bool, end: str) -> dict:
        generation = -1 if self._round is None else self._round[self._node]
        return {"rank": self._node, "generation": generation, "pid": os.getpid(),
                "alive": alive, "end": end, "step": -1, "errors": []}

    def _tell_end(self, end: str) -> None:
        self._report["ranks"] = [self._rank(alive=False, end=end)]
        self._urgent = True
        self._changed.notify_all()

    def _take_result(self, result) -> None:
        with self._changed:
            self._result = result

    def _join(self) -> None:
        key = f"driver/host/{self._host}"
        before = self._client.get(key) if self._client.check([key]) else b""
        while True:
            if before:
                self._report["incarnation"] = json.loads(before)["incarnation"] + 1
            text = json.dumps(self._report).encode()
            held = self._client.compare_set(key, before, text)
            if held == text:
                break
            before = held
        self._told = text
        self._client.append(_HOSTS, f"{self._host}\n")

    def _beat(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._urgent or self._ends, _PERIOD_S)
                urgent, self._urgent, last = self._urgent, False, self._ends
                self._report["beat"] += 1
                text = json.dumps(self._report).encode()
            sent = time.monotonic()
            try:
                if not self._write(text):
                    return self._fail(f"another torchrun has joined as {self._host}")
                if urgent:
                    self._client.add(_BELL, 1)
            except StoreTimeout:  # the report is written again, in the place of this one
                with self._changed:
                    self._urgent = self._urgent or urgent
                continue
            except StoreError as error:
                return self._fail(str(error))
            with self._changed:
                self._contact = sent
            if last:
                return None

    def _write(self, text: bytes) -> bool:
        """Puts a report in the place of this host's last one; False: another's is there. A write
        that ran out of time may be there as well, which its writer's token tells."""
        key = f"driver/host/{self._host}"
        held = self._client.compare_set(key, self._told, text)
        if held != text and self._report["writer"].encode() in held:
            held = self._client.compare_set(key, held, text)
        if held != text:
            return False
        self._told = text
        return True

    def _watch(self) -> None:
        version = 0
        while True:
            try:
                version, value = self._client.watch(_STATE, version, 60)
            except StoreError as error:
                if error.code == "DEADLINE_EXCEEDED":
                    continue
                return self._fail(str(error))
            if value is None:
                continue
            with self._changed:
                self._state = json.loads(value)
                self._report["lease"] = self._state["lease"]
                self._lease = self._state["lease"] / 1e6
                me = self._me()
                test = 0 if me is None else me["test"]
                self._refuse_replay()
                self._changed.notify_all()
            if test > self._report["test"]:
                self._test(test)

    def _refuse_replay(self) -> None:
        """Reports that a replay has failed here: the driver suspends the job until all hosts have
        reported theirs, and torchrun's workers replay no step."""
        replay = self._state["job"].get("replay")
        if replay is None or replay["task"] <= self._report["replay"]:
            return
        parts = [group for group in replay["groups"]
                 if group["phase"] == replay["phase"] and self._host in group["hosts"]]
        self._report.update(replay=replay["task"], digests=[""] * len(parts),
                            replay_text="torchrun's workers replay no step")
        self._urgent = True

    def _test(self, number: int) -> None:
        """The host's self-test, by weft-executor. Where there is none, nothing is known of the host,
        and the driver is told so."""
        executor = shutil.which("weft-executor")
        passed, untested, text = False, executor is None, "there is no weft-executor in PATH"
        if executor:
            try:
                done = subprocess.run([executor, "--self-test"], capture_output=True, text=True,
                                      timeout=_SELF_TEST_S, check=False)
                passed, text = done.returncode == 0, (done.stdout + done.stderr).strip()
            except subprocess.TimeoutExpired as error:
                text = str(error)
            except OSError as error:
                untested, text = True, f"{executor}: {error}"
        with self._changed:
            self._report.update(test=number, passed=passed, untested=untested,
                                test_text=text[-_CAUSE_MOST:])
            self._urgent = True
            self._changed.notify_all()

    def _fail(self, problem: str) -> None:
        with self._changed:
            self._problem = problem
            self._changed.notify_all()
