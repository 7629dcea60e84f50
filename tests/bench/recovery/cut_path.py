"""A training run of two hosts in network namespaces, between which one of two paths is lost.

RUN COMMAND...: the run's folder, and weft-train's words. Prints a line of JSON. The spine with more
bytes drops everything, both ways and without a word, until the run has gone on for some steps.
"""

import json
import os
import pathlib
import sys
import time

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/fabric"))
sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/bench"))
import netns  # noqa: E402

STEPS_AFTER = 25
PATIENCE = 300  # seconds


def main() -> None:
    netns.enter()
    netns.require_routers()
    from _recovery import BIN, last_step, say  # after enter(), as they start nothing of their own
    from _recovery_free import Watch
    run, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
    with netns.Fabric(leaves=2, spines=2, hosts_per_leaf=1) as fabric:
        environment = dict(os.environ, WEFT_JOB_SECRET="5a" * 32)
        del environment[netns.INSIDE]  # programs refuse settings that they do not know
        programs = [fabric.start(host, [
            BIN / "weft-run", "-n", 1, "--nnodes", 2, "--node-rank", host, "--master-addr",
            fabric.address(0), "--master-port", 29400, "--output", "none", "--set",
            "transport=tcp", "--set", "tcp.sockets=4", "--", *words],
            env=environment) for host in range(2)]

        def wait_for(step: int) -> None:
            end = time.monotonic() + PATIENCE
            while last_step(run) < step:
                if time.monotonic() > end or any(one.poll() is not None for one in programs):
                    raise SystemExit(f"{run}: step {step} is not done after {PATIENCE} s, or at "
                                     "the end")
                time.sleep(0.005)

        try:
            watch = Watch(run)
            wait_for(12)
            before = fabric.counters()
            time.sleep(1)
            sent = [sum(now[spine] - then[spine]
                        for now, then in zip(fabric.counters(), before)) for spine in range(2)]
            spine = sent.index(max(sent))
            say(f"  spine {spine} drops all: it had {sent[spine]} of {sum(sent)} bytes of a second")
            fabric.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.ip_forward=0"])
            wait_for(last_step(run) + STEPS_AFTER)
            fabric.at(f"s{spine}", ["sysctl", "-qw", "net.ipv4.ip_forward=1"])
            wait_for(last_step(run) + STEPS_AFTER)
            watch.stop()
            for program in programs:
                status = program.wait(PATIENCE)
                if status != 0:
                    raise SystemExit(f"{run}: exit status {status}")
        finally:
            for program in programs:
                program.kill()
                program.wait()
    share = 100 * sent[spine] // max(1, sum(sent))
    print(json.dumps({"again": watch.again, "longest": watch.longest,
                      "what": f"{share} % of the bytes were on it"}), flush=True)


if __name__ == "__main__":
    main()
