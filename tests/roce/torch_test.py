#!/usr/bin/python3
"""PyTorch over real RoCE v2 (rdma_rxe): two processes on two hosts of a virtual machine.

What must hold: collectives and messages of tensors of many sizes, each freed after its call, so
that later ones lie at the addresses of earlier ones, give what they should over verbs; after such
traffic the gradients and parameters of DistributedDataParallel are Gloo's to the bit. Python and
PyTorch are this host's, which the machine reads. Runs with WEFT_ROCE=1 only, which `tools/dev test
roce` sets, and where there is a PyTorch (`tools/dev test torch` installs it).
"""

import pathlib
import sys

import scene

scene.skip_unless_asked()
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "plugins/torch"))
import installed  # noqa: E402 -- starts this test again in an interpreter that has PyTorch

LIMIT_SECONDS = 1500
PROGRAM = r"""
import json, os, sys
import torch, torch.distributed as dist

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), 2
dist.init_process_group("weft", init_method="file:///dev/shm/store", rank=rank, world_size=size)
gloo = dist.new_group(backend="gloo")
problems, done = [], {"calls": 0, "repeated": 0}
addresses = set()


def tensor(values, count):
    made = torch.full((count,), float(values))
    done["repeated"] += made.data_ptr() in addresses
    addresses.add(made.data_ptr())
    return made


def expect(what, got, want):
    done["calls"] += 1
    if not torch.equal(got, torch.full_like(got, float(want))):
        problems.append(f"{what} of {got.numel()}: {got.min().item()} to {got.max().item()}, not {want}")


def traffic(seed, counts):
    for count in counts:
        seed += 1
        mine = tensor(10 * seed + rank, count)
        dist.all_reduce(mine)
        expect("all_reduce", mine, 20 * seed + 1)
        del mine
        rows = [torch.zeros(count) for _ in range(size)]
        dist.all_gather(rows, tensor(seed + rank, count))
        for other in range(size):
            expect("all_gather", rows[other], seed + other)
        part = torch.zeros(count)
        dist.reduce_scatter(part, [tensor(seed + rank + 5 * other, count) for other in range(size)])
        expect("reduce_scatter", part, 2 * seed + 1 + 10 * rank)
        root = tensor(seed + rank, count)
        dist.broadcast(root, src=1)
        expect("broadcast", root, seed + 1)
        if rank == 0:
            work = dist.isend(tensor(seed, count), 1)
            works.append(work)
            work.wait()
        else:
            got = torch.zeros(count)
            work = dist.irecv(got, 0)
            works.append(work)
            work.wait()
            expect("irecv", got, seed)


def train(group):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(192, 256), torch.nn.ReLU(), torch.nn.Linear(256, 192))
    parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group,
                                                         bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05)
    out = []
    for step in range(3):
        inputs = torch.randn(8, 192, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        (parallel(inputs) - inputs).square().mean().backward()
        out += [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
    return out + [parameter.detach().clone() for parameter in model.parameters()]


works = []  # held longer than their tensors
want = train(gloo)
for repeat in range(2):
    traffic(100 * repeat, [1, 1000, 30_000, 100_000, 400_000, 100_000, 30_000, 400_000])
    got = train(dist.group.WORLD)
    unequal = [index for index in range(len(want)) if not torch.equal(want[index], got[index])]
    if unequal:
        problems.append(f"DistributedDataParallel, {repeat}: {unequal} of {len(want)} are not Gloo's")
    del got
import weft.torch
links = [link for group in weft.torch.statistics() for link in group["links"]]
print("result " + json.dumps({"problems": problems, "links": links, **done}), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
SCRIPT = f"""
mkdir -p /host
mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host || exit 3
for folder in proc dev dev/shm; do mount -o bind /$folder /host/$folder; done
cat > /dev/shm/program.py << 'END'
{PROGRAM}END
python_rank() {{  # rank
  host_exec $1 timeout 1200 sh -c 'mount -t sysfs sys /host/sys
    exec chroot /host /usr/bin/env -i "$@"' rank PATH=/usr/bin:/bin HOME=/dev/shm TMPDIR=/dev/shm \
    PYTHONPATH={installed.SITE} PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= \
    RANK=$1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GLOO_SOCKET_IFNAME=m$1 WEFT_TCP_INTERFACE=m$1 \
    WEFT_TRANSPORT=verbs WEFT_VERBS_DEVICES==rxe$(($1 + 2)) WEFT_LOG_LEVEL=warn \
    {sys.executable} -u /dev/shm/program.py > python$1.txt 2>&1
}}
python_rank 1 & other=$!
python_rank 0; echo "status python.0 $?"
wait $other; echo "status python.1 $?"
shown python.0 python0.txt; shown python.1 python1.txt
"""


def main() -> int:
    import json

    problems, text = scene.run(SCRIPT, (), LIMIT_SECONDS, memory_mib=4096, shares_files=True)
    problems += scene.ill(text, "python.0", "python.1")
    for label in ("python.0", "python.1"):
        results = [json.loads(row.removeprefix("result ")) for row in scene.rows(text, label)
                   if row.startswith("result ")]
        if not results:
            problems.append(f"{label} gave no result")
            continue
        (result,) = results
        problems += [f"{label}: {problem}" for problem in result["problems"]]
        if not any(link["transport"] == "verbs" for link in result["links"]):
            problems.append(f"{label} did not go over verbs: {result['links']}")
        if result["repeated"] == 0:
            problems.append(f"{label}: no tensor lay where an earlier one had, which is the point")
        print(f"{label}: {result['calls']} results right but for {len(result['problems'])}, "
              f"{result['repeated']} tensors at an earlier one's address")
    return scene.end(problems, text)


if __name__ == "__main__":
    sys.exit(main())
