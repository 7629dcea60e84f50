"""Layouts that bench layouts draws: one for each seed, from the whole space of settings. Nothing here runs.

Sizes are drawn to fit the mesh, so that most layouts train; every 16th has one setting that nothing was fitted to,
which the engine must refuse where it is impossible.
"""

import math
import random

from _layouts import CHUNKED, EXPERTS, RANKS_MOST, SCHEDULES, Layout, Trained, ranks_of, values_of

HEADS_MOST, BATCH_MOST, LAYERS_MOST, EXPERTS_MOST = 12, 24, 8, 12
SIZES = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)  # of an axis
# And their learning rates: so high that losses fall by 1 in the steps, and not so high that they go up and down.
OPTIMIZERS = {"adamw": "5e-3", "lamb": "1e-2", "lion": "5e-4", "muon": "5e-3", "sgd": "0.1"}
# AdamW's first step is the sign of a gradient that is large beside epsilon, and rounding decides it near 0: with 1e-8,
# what rounding had changed grew to 20 times as much.
EPSILON = "1e-5"
UNFITTED = ("parallel.zero_group=5", "parallel.expert=3", "parallel.chunks=3", "parallel.context_method=ulysses",
            "train.micro_batch=5", "parallel.pipeline=5", "parallel.stages=1,2", "parallel.context=3")


def draw(seed: int) -> Layout:
    pick = random.Random(seed)
    while True:
        layout = attempt(pick, seed)
        if layout is not None:
            return layout


def attempt(pick: random.Random, seed: int) -> Layout | None:
    """None where sizes that fit the meshes are larger than is quick to train."""
    meshes = [draw_mesh(pick) for _ in range(2 if pick.random() < 0.4 else 1)]
    if any(mesh is None for mesh in meshes) or all(ranks_of(mesh) == 1 for mesh in meshes):
        return None
    trained = draw_trained(pick, meshes, seed)
    if trained is None:
        return None
    sizes = values_of(trained.settings())
    layouts = [draw_layout(pick, mesh, trained, sizes) for mesh in meshes]
    if any(layout is None for layout in layouts):
        return None
    first, *rest = layouts
    unfitted = (pick.choice(UNFITTED),) if not rest and pick.random() < 1 / 16 else ()
    return Layout(**{**first, "drawn": first["drawn"] + unfitted}, seed=seed,
                  then=Layout(**rest[0]) if rest else None)


def draw_mesh(pick: random.Random) -> dict | None:
    mesh = {axis: pick.choice(SIZES) for axis in ("tensor", "context", "pipeline", "data")}
    if ranks_of(mesh) > RANKS_MOST or (ranks_of(mesh) > 4 and pick.random() < 0.5):
        return None  # more ranks take longer to start
    mesh["method"] = pick.choice(("ring", "ulysses")) if mesh["context"] > 1 else "ring"
    pipelined = mesh["pipeline"] > 1 or pick.random() < 0.1  # a schedule may also be that of one stage
    mesh["schedule"] = pick.choice((*SCHEDULES, "eager-1f1b")) if pipelined else "1f1b"
    mesh["chunks"] = (1 if mesh["schedule"] not in CHUNKED else
                      pick.choice((2, 2, 3)) if mesh["schedule"] == "interleaved" else 2)
    mesh["expert"] = pick.choice([size for size in (1, 2, 3, 4) if mesh["data"] % size == 0])
    return mesh


def draw_trained(pick: random.Random, meshes: list[dict], seed: int) -> Trained | None:
    """A model that can be cut over all of the meshes, and how it is trained."""
    def multiple(most: int, *units: int) -> int:
        unit = math.lcm(*units)
        return unit * pick.randint(1, max(1, most // unit))

    mixture = pick.random() < 0.3
    precision = "bf16" if not mixture and pick.random() < 0.05 else "fp32"
    optimizer = "adamw" if precision == "bf16" else pick.choice(("adamw", *OPTIMIZERS))
    heads = multiple(6, *(mesh["tensor"] * (mesh["context"] if mesh["method"] == "ulysses" else 1) for mesh in meshes))
    kv_heads = pick.choice([0, *(count for count in range(1, heads) if heads % count == 0 and all(
        count % mesh["tensor"] == 0 or mesh["tensor"] % count == 0 for mesh in meshes))])
    depth = max(mesh["pipeline"] * mesh["chunks"] for mesh in meshes)
    layers = depth + pick.randint(0, 2)
    sequence = multiple(40, *((2 if mesh["method"] == "ring" else 1) * mesh["context"] for mesh in meshes))
    # Of the orders of reduction in bf16, one has 8 data-parallel ranks.
    batch = multiple(16, 8 if precision == "bf16" else 1,
                     *(mesh["data"] * (mesh["pipeline"] if mesh["schedule"] == "interleaved" else 1)
                       for mesh in meshes))
    experts = multiple(EXPERTS, 2, *(mesh["tensor"] * mesh["expert"] for mesh in meshes)) if mixture else 0
    rotary = pick.random() < 0.4
    hidden = heads * pick.choice((4, 8, 10, 16) if rotary else (5, 8, 9, 16))
    if (heads > HEADS_MOST or layers > LAYERS_MOST or batch > BATCH_MOST or experts > EXPERTS_MOST or hidden < 8
            or sequence < 8):
        return None
    window = pick.choice((0, 0, pick.randint(1, sequence)))
    drawn = [f"model.layers={layers}", f"model.heads={heads}", f"model.kv_heads={kv_heads}",
             f"model.hidden={hidden}", f"model.sequence={sequence}",
             f"model.ffn={multiple(96, *(mesh['tensor'] for mesh in meshes))}", f"train.global_batch={batch}",
             f"train.seed={seed % 1000 + 1}", f"model.window={window}",
             f"model.window_layers={pick.choice(('all', 'even', 'odd', str(pick.randrange(layers))))}",
             f"model.block={pick.choice(('serial', 'serial', 'parallel'))}",
             f"model.position={'rotary' if rotary else 'learned'}",
             f"model.activation={pick.choice(('gelu', 'swiglu'))}",
             f"model.norm={pick.choice(('layernorm', 'rmsnorm'))}",
             f"model.tied={pick.choice(('true', 'false'))}", f"model.bias={pick.choice(('true', 'false'))}",
             f"model.dropout={pick.choice((0, 0, 0.1))}", f"optimizer.clip={pick.choice((0, 0.3, 1))}",
             f"optimizer.decay_all={pick.choice(('true', 'false'))}", "optimizer.warmup_steps=3",
             f"optimizer.learning_rate={OPTIMIZERS[optimizer]}", f"optimizer.epsilon={EPSILON}"]
    if rotary and pick.random() < 0.3:
        drawn += [f"model.rotary_scaling={pick.choice(('linear', 'ntk', 'llama3'))}", "model.rotary_factor=2",
                  f"model.rotary_original={sequence // 2}"]
    if mixture:
        drawn += [f"model.experts={experts}", f"model.experts_per_token={pick.randint(1, min(3, experts))}",
                  f"model.capacity_factor={pick.choice((0, 0, 0.5, 1, 1.5))}",
                  f"model.balance_loss={pick.choice((0, 0.01))}"]
    if optimizer == "lamb":
        drawn += [f"optimizer.lamb_bias_correction={pick.choice(('true', 'false'))}",
                  f"optimizer.lamb_norm_clip={pick.choice((0, 2))}"]
    return Trained(precision, optimizer, mixture=mixture, layers=layers, drawn=tuple(drawn))


def draw_layout(pick: random.Random, mesh: dict, trained: Trained, sizes: dict) -> dict | None:
    """The arguments of a Layout; None where no micro-batch's tokens can be cut over the tensor axis."""
    mesh = dict(mesh)
    chunks, ranks = mesh.pop("chunks"), mesh["data"] * mesh["context"]
    if not trained.mixture:
        mesh["expert"] = 1
    share, tokens = int(sizes["train.global_batch"]) // mesh["data"], int(sizes["model.sequence"]) // mesh["context"]
    unit = mesh["pipeline"] if mesh["schedule"] == "interleaved" else 1
    fitting = [rows for rows in range(1, share + 1)
               if share % rows == 0 and share // rows % unit == 0 and rows * tokens % mesh["tensor"] == 0]
    if not fitting:
        return None
    zero = pick.randint(0, 3)
    groups = [size for size in range(1, ranks) if ranks % size == 0 and holds_experts_evenly(size, mesh)]
    layers, depth = int(sizes["model.layers"]), mesh["pipeline"] * chunks
    drawn = [f"train.micro_batch={pick.choice((*fitting, *fitting, 0))}", f"parallel.chunks={chunks}",
             f"parallel.tensor_chunks={pick.choice((0, 1, 2, 3, 5, 7, 64))}",
             f"parallel.tensor_gathered={pick.choice(('auto', 'again', 'keep'))}",
             f"parallel.stages={draw_stages(pick, depth, layers, halves=sizes['model.block'] == 'serial')}",
             f"parallel.expert_pieces={pick.choice((1, 2, 3, 5, 16))}",
             f"parallel.receives_ahead={pick.choice((0, 1, 2, 4, 64))}",
             f"parallel.replan={pick.choice(('off', 'bitwise', 'any'))}",
             f"parallel.overlap={pick.choice(('all', 'all', 'none', 'data,context', 'tensor,expert'))}",
             f"parallel.bucket_bytes={pick.choice(('1KiB', '16KiB', '64KiB', '4MiB'))}",
             f"parallel.reduce_precision={pick.choice(('auto', 'compute', 'fp32'))}",
             f"train.pack_weights={pick.choice(('true', 'false'))}", f"train.loss_rows={pick.choice((0, 0, 1, 7, 64))}",
             f"data.prefetch={pick.choice((0, 2))}", f"checkpoint.background={pick.choice(('true', 'false'))}",
             f"sample.tokens={pick.choice((0, 0, 5))}", f"log.trace_steps={pick.choice((0, 3))}"]
    if pick.random() < 0.2:
        kinds = [pick.choice(("none", "selective", "full")) for _ in range(layers)]
        drawn.append("train.recompute=" + ",".join(f"{kind}:{layer}" for layer, kind in enumerate(kinds)))
    if pick.random() < 0.08:  # by the way that GPUs take
        drawn += ["train.device=cpu-aten", "train.gemm=aten", "train.attention=aten"]
    shares = bool(groups) and zero > 0 and pick.random() < 0.4
    return {**mesh, "trained": trained, "zero": zero, "group": pick.choice(groups) if shares else 0,
            "recompute": pick.choice(("none", "selective", "full")), "drawn": tuple(drawn)}


def holds_experts_evenly(group: int, mesh: dict) -> bool:
    """Whether groups of so many data-parallel ranks can share training state (parallel.zero_group)."""
    whole = mesh["context"] * mesh["expert"]
    return mesh["expert"] == 1 or group % whole == 0 or mesh["context"] % group == 0


def draw_stages(pick: random.Random, depth: int, layers: int, halves: bool) -> str:
    """parallel.stages, of `depth` chunks; with halves of layers where these may be cut."""
    if pick.random() < 0.5 or depth == 1:
        return pick.choice(("auto", "even"))
    unit = 2 if halves else 1
    cuts = sorted(pick.sample(range(1, unit * layers), depth - 1))
    return ",".join(f"{(end - begin) / unit:g}" for begin, end in zip([0, *cuts], [*cuts, unit * layers]))
