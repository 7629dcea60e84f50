"""Traffic of which the simulators' completion times are held against a netns.Fabric of 4 leaves, 2
spines and 8 hosts. Sizes are in milliseconds of one link's rate, so that they fit any rate."""

import random

from traffic import Flow

DPORT = 5000


def _cross(draw, source):
    """A host below another leaf."""
    return draw.choice([host for host in range(8) if host // 2 != source // 2])


def _port(draw):
    return draw.randrange(20000, 30000)


def one_flow(unit, draw):
    return [Flow(0, 2, 900 * unit, _port(draw), DPORT)]


def permutation(unit, draw):
    order = draw.sample(range(4), 4)
    while any(order[leaf] == leaf for leaf in range(4)):
        order = draw.sample(range(4), 4)
    return [Flow(host, order[host // 2] * 2 + host % 2, 500 * unit, _port(draw), DPORT)
            for host in range(8)]


def shift(unit, draw):
    return [Flow(host, (host + 2) % 8, 500 * unit, _port(draw), DPORT) for host in range(8)]


def incast(unit, draw):
    return [Flow(host, 0, 300 * unit, _port(draw), DPORT) for host in range(2, 8)]


def outcast(unit, draw):
    return [Flow(0, host, 300 * unit, _port(draw), DPORT) for host in range(2, 8)]


def unequal_sizes(unit, draw):
    return [Flow(0, 2, size * unit, _port(draw), DPORT + i)
            for i, size in enumerate((200, 400, 800))]


def all_to_all(unit, draw):
    return [Flow(a, b, 60 * unit, _port(draw), DPORT + a) for a in range(8) for b in range(8)
            if a // 2 != b // 2]


def random_flows(unit, draw):
    flows = []
    for i in range(12):
        source = draw.randrange(8)
        flows.append(Flow(source, _cross(draw, source), draw.randrange(100, 500) * unit,
                          _port(draw), DPORT + i))
    return flows


def ring_steps(unit, draw):
    """Six steps of a ring over one host a leaf; each waits for what it passes on."""
    hosts, flows = (0, 2, 4, 6), []
    ports = [_port(draw) for _ in hosts]
    for step in range(6):
        for i, host in enumerate(hosts):
            after = [(step - 1) * 4 + (i - 1) % 4] if step else []
            flows.append(Flow(host, hosts[(i + 1) % 4], 150 * unit, ports[i], DPORT, after))
    return flows


def tree_broadcast(unit, draw):
    edges = ((0, 2, None), (0, 4, None), (2, 6, 0), (4, 3, 1), (6, 1, 2))
    return [Flow(a, b, 400 * unit, _port(draw), DPORT + i, [] if after is None else [after])
            for i, (a, b, after) in enumerate(edges)]


def gather_then_scatter(unit, draw):
    flows = [Flow(host, 0, 200 * unit, _port(draw), DPORT) for host in (2, 4, 6)]
    return flows + [Flow(0, host, 200 * unit, _port(draw), DPORT + 1, [0, 1, 2])
                    for host in (2, 4, 6)]


def two_phases(unit, draw):
    flows = [Flow(host, (host + 2) % 8, 300 * unit, _port(draw), DPORT) for host in range(8)]
    everything = list(range(8))
    return flows + [Flow(host, (host + 4) % 8, 300 * unit, _port(draw), DPORT + 1, everything)
                    for host in range(8)]


ALL = (one_flow, permutation, shift, incast, outcast, unequal_sizes, all_to_all, random_flows,
       ring_steps, tree_broadcast, gather_then_scatter, two_phases)


def make(workload, mbit, seed=1) -> list:
    unit = int(mbit * 1e6 / 8 / 1000)
    return workload(unit, random.Random(seed))
