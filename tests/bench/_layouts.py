"""The layouts that bench layouts trains, and how far their losses may be from one rank's. Nothing here runs.

A matrix over all products of the axes up to 8 ranks: each of 2 or 4 ranks has every schedule and every stage of ZeRO
that it can have, each of 8 ranks some of them in turn, and all whose ranks can share experts a mixture. What a layout
is trained with (optimizer, architecture, recomputation) takes turns.
"""

import dataclasses
import itertools
import math

AXES = ("tensor", "context", "pipeline", "data")
RANKS_MOST = 8
SAMPLES = 8  # of a step
HEADS, EXPERTS = 4, 8
SCHEDULES = ("1f1b", "zb-h1", "gpipe", "zb-v", "interleaved")  # in turn; of eager-1f1b see eager()
CHUNKED = ("interleaved", "zb-v")  # two chunks of layers on a stage
RECOMPUTE = ("none", "selective", "full")
OPTIMIZERS = ("adamw", "lamb", "adamw", "sgd", "adamw", "lion", "adamw", "muon")

MODEL = [f"train.global_batch={SAMPLES}", "model.hidden=64", f"model.heads={HEADS}", "model.sequence=32"]
# For axes of 3 ranks. With seeds 1 and 2 there is a step, 58 and 56, in which what rounding has changed grows 20 times:
# one rank's loss then moves by 3e-6 where the learning rate differs by 3e-7 of itself.
THIRDS = ["train.global_batch=12", "model.layers=6", "model.hidden=96", "model.heads=6", "model.sequence=36",
          "model.ffn=384", "train.seed=3"]
SECOND = ["model.block=parallel", "model.tied=false", "model.position=rotary", "model.activation=swiglu",
          "model.norm=rmsnorm", "model.dropout=0.1"]
# A seed with which no token's second and third expert come so near to a tie that the order of a sum decides.
MIXTURE = [f"model.experts={EXPERTS}", "model.experts_per_token=2", "model.ffn=48", "train.seed=2"]


def values_of(settings: list[str]) -> dict[str, str]:
    """By key; the last value of a key holds."""
    return dict(setting.split("=", 1) for setting in settings)


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is trained; the reference is one rank's run of the same."""
    precision: str = "fp32"
    optimizer: str = "adamw"
    second: bool = False  # the second architecture
    mixture: bool = False
    layers: int = 4
    thirds: bool = False  # sizes that axes of 3 ranks divide
    drawn: tuple[str, ...] = ()  # settings in place of the others (_random_layouts.py)

    @property
    def name(self) -> str:
        parts = [self.precision, self.optimizer, "parallel block" if self.second else "",
                 "mixture" if self.mixture else "", f"{self.layers} layers" if self.layers != 4 else "",
                 "sizes by 6" if self.thirds else ""]
        return ", ".join(part for part in parts if part)

    @property
    def decides(self) -> bool:
        """Steps by the sign of a sum, which depends, near 0, on its order."""
        return self.optimizer == "lion"

    def settings(self) -> list[str]:
        found = [*MODEL, f"model.layers={self.layers}", f"train.precision={self.precision}",
                 f"optimizer.name={self.optimizer}"]
        if self.optimizer == "lion":
            found.append("optimizer.learning_rate=3e-4")
        found += THIRDS if self.thirds else []
        found += (SECOND if self.second else []) + (MIXTURE if self.mixture else [])
        return found + list(self.drawn)


@dataclasses.dataclass(frozen=True)
class Layout:
    trained: Trained
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    method: str = "ring"
    schedule: str = "1f1b"
    zero: int = 1
    group: int = 0  # ranks that share training state; 0: all data-parallel ranks
    recompute: str = "none"
    seed: int | None = None  # it was drawn with
    drawn: tuple[str, ...] = ()  # settings in place of the others
    then: "Layout | None" = None  # takes the second half of the steps, from the checkpoint of the first

    @property
    def is_drawn(self) -> bool:
        return self.seed is not None

    @property
    def ranks(self) -> int:
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def micro_batch(self) -> int:
        """Samples at once: two micro-batches a stage of a pipeline, if there are as many; two or one without."""
        share = (12 if self.trained.thirds else SAMPLES) // self.data
        several = self.zero == 2 or self.recompute == "selective"
        count = 2 * self.pipeline if self.pipeline > 1 else 2 if several else 1
        return share // min(share, count)

    @property
    def name(self) -> str:
        axes = [f"{axis}{size}" for axis, size in (("tp", self.tensor), ("cp", self.context), ("pp", self.pipeline),
                                                   ("dp", self.data), ("ep", self.expert)) if size > 1]
        parts = [" ".join(axes), self.method if self.context > 1 else "", self.schedule if self.pipeline > 1 else "",
                 f"zero {self.zero}" + (f" in groups of {self.group}" if self.group else ""),
                 f"{self.recompute} recompute" if self.recompute != "none" else ""]
        text = ", ".join(part for part in parts if part)
        text = f"seed {self.seed}: {text}" if self.is_drawn else text
        return f"{text}, then {self.then.name}" if self.then else f"{text} ({self.trained.name})"

    def settings(self) -> list[str]:
        return [*self.trained.settings(), f"parallel.tensor={self.tensor}", f"parallel.context={self.context}",
                f"parallel.context_method={self.method}", f"parallel.pipeline={self.pipeline}",
                f"parallel.expert={self.expert}", f"parallel.schedule={self.schedule}", f"parallel.zero={self.zero}",
                f"parallel.zero_group={self.group}", f"train.recompute={self.recompute}",
                f"train.micro_batch={self.micro_batch}",
                # As on many hosts, and as where the ranks of one fill its cores.
                *(["parallel.tensor_chunks=1", "parallel.tensor_gathered=keep"] if self.trained.second else
                  ["parallel.tensor_chunks=2", "parallel.tensor_gathered=again"]), *self.drawn]

    def parts(self, steps: int) -> list[tuple[int, int, list[str]]]:
        """The starts of weft-train that one run takes: the last step, the ranks and the settings of each."""
        first = (steps // 2 if self.then else steps, self.ranks, self.settings())
        return [first, (steps, self.then.ranks, self.then.settings())] if self.then else [first]


def meshes() -> list[dict]:
    """All products of powers of two of tensor, context, pipeline and data, of 2 to 8 ranks."""
    found = []
    for tensor, context, pipeline, data in itertools.product((1, 2, 4), (1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8)):
        sizes = {"tensor": tensor, "context": context, "pipeline": pipeline, "data": data}
        if 1 < tensor * context * pipeline * data <= RANKS_MOST:
            found.append(sizes)
    return found


def variants(mesh: dict, turn: int) -> list[dict]:
    """A layout for each schedule and for each stage of ZeRO, as few as have them all."""
    pipeline, sharers = mesh["pipeline"], mesh["data"] * mesh["context"]
    schedules = [schedule for schedule in SCHEDULES
                 if pipeline > 1 and (schedule not in CHUNKED or SAMPLES // mesh["data"] % pipeline == 0)] or ["1f1b"]
    stages = (0, 1, 2, 3) if sharers > 1 else (1,)
    found = []
    for i in range(max(len(schedules), len(stages))):
        schedule = schedules[(i + turn) % len(schedules)]
        # With stages of ZeRO that reduce gradients with every micro-batch: split_backward().
        fitting = [zero for zero in stages if zero <= 1 or not schedule.startswith("zb")]
        used = [one["zero"] for one in found]
        zero = min(fitting, key=lambda stage: (used.count(stage), stage < 2, (stage + turn) % 4))
        # Ulysses deals out heads, of which the tensor axis has its part.
        deals = mesh["tensor"] * mesh["context"] <= HEADS and (i + turn) % 2 == 1
        # Groups that share state, and are replicas of each other (HSDP).
        group = 2 if sharers >= 4 and zero > 0 and (i + turn // 2) % 2 == 1 else 0
        found.append({"schedule": schedule, "zero": zero, "method": "ulysses" if deals else "ring", "group": group})
    return found


def ranks_of(mesh: dict) -> int:
    return mesh["tensor"] * mesh["context"] * mesh["pipeline"] * mesh["data"]


def trained_with(turn: int, mesh: dict, variant: dict) -> Trained:
    # Each optimizer has both architectures in turn.
    second = (turn + turn // len(OPTIMIZERS)) % 2 == 1
    if mesh["pipeline"] == 4 and variant["schedule"] in CHUNKED:
        return Trained(layers=8)
    return Trained(optimizer=OPTIMIZERS[turn % len(OPTIMIZERS)], second=second)


def matrix() -> list[Layout]:
    """fp32: everything; bf16: a layout of each mesh, and mixtures whose data-parallel ranks all share the experts; of
    8 ranks a third of these."""
    fp32, bf16 = [], []
    for number, mesh in enumerate(meshes()):
        found, large = variants(mesh, number), ranks_of(mesh) == RANKS_MOST
        for variant in found[:(2 if mesh["pipeline"] > 1 else 1) if large else None]:
            turn = len(fp32)
            fp32.append(Layout(trained_with(turn, mesh, variant), **mesh, **variant,
                               recompute=RECOMPUTE[turn % len(RECOMPUTE)]))
        # A layout of 4 layers.
        flat = [variant for variant in found if mesh["pipeline"] < 4 or variant["schedule"] not in CHUNKED]
        once = flat[number % len(flat)]
        few = not large or number % 3 == 0
        deals = number % 2 == 0 and mesh["tensor"] * mesh["context"] <= HEADS
        if few:
            bf16.append(Layout(Trained("bf16"), **mesh, **{**once, "method": "ulysses" if deals else "ring"}))
        once = {**once, "group": 0}  # experts have fewer replicas than the other parameters
        for expert in (1, 2, 4, 8):
            shares = mesh["tensor"] * expert
            if mesh["data"] % expert or shares == 1 or EXPERTS % shares:
                continue
            if large and expert != mesh["data"]:
                continue
            turn = len(fp32)
            fp32.append(Layout(Trained(second=turn % 2 == 1, mixture=True), **mesh, **once, expert=expert,
                               recompute=RECOMPUTE[turn % len(RECOMPUTE)]))
            if few and 1 < expert == mesh["data"]:
                bf16.append(Layout(Trained("bf16", mixture=True), **mesh, **once, expert=expert))
    return sorted(fp32 + thirds() + split_backward() + eager() + bf16, key=lambda layout: layout.ranks)


def sample() -> list[Layout]:
    """Three layouts of one reference, each of two axes."""
    ours = [layout for layout in matrix() if layout.trained == Trained(second=True)]
    return [next(layout for layout in ours if layout.name.startswith(name))
            for name in ("tp2 pp2, interleaved", "cp2 dp2, ring", "tp2 cp2, ulysses, zero 3")]


def thirds() -> list[Layout]:
    """Axes of 3 ranks, alone and with 2 ranks on each other axis."""
    found = []
    for three, two in itertools.product(AXES, repeat=2):
        mesh = {axis: 3 if axis == three else 2 if axis == two else 1 for axis in AXES}
        turn = len(found)
        schedule = SCHEDULES[turn % len(SCHEDULES)] if mesh["pipeline"] > 1 else "1f1b"
        shared = mesh["data"] * mesh["context"] > 1
        found.append(Layout(Trained(second=turn % 2 == 1, thirds=True), **mesh, schedule=schedule,
                            zero=turn % 2 if schedule.startswith("zb") or not shared else turn % 4,
                            method=("ring", "ulysses")[turn // 2 % 2], recompute=RECOMPUTE[turn % len(RECOMPUTE)]))
    return found


def split_backward() -> list[Layout]:
    """Schedules with weight passes of their own, under stages of ZeRO that reduce gradients with every micro-batch."""
    found = []
    for schedule, zero, shares in itertools.product(("zb-h1", "zb-v"), (2, 3), ("data", "context")):
        turn = len(found)
        found.append(Layout(Trained(second=turn % 2 == 1), pipeline=2, schedule=schedule, zero=zero, **{shares: 2},
                            method=("ring", "ulysses")[turn // 2 % 2], recompute=RECOMPUTE[turn % len(RECOMPUTE)]))
    found.append(Layout(Trained(mixture=True), pipeline=2, data=2, expert=2, schedule="zb-h1", zero=2))
    found.append(Layout(Trained("bf16"), pipeline=2, data=2, schedule="zb-v", zero=2))
    return found


def eager() -> list[Layout]:
    """eager-1f1b on every mesh of up to 4 ranks with a pipeline, and once in bf16."""
    found = []
    for mesh in meshes():
        if mesh["pipeline"] == 1 or ranks_of(mesh) == RANKS_MOST:
            continue
        turn = len(found)
        shared = mesh["data"] * mesh["context"] > 1
        found.append(Layout(Trained(second=turn % 2 == 1), **mesh, schedule="eager-1f1b",
                            zero=turn % 4 if shared else 1, recompute=RECOMPUTE[turn % len(RECOMPUTE)]))
    found.append(Layout(Trained("bf16"), pipeline=2, data=2, schedule="eager-1f1b", zero=2))
    return found


FP32_MOST = 1e-5
# How many times the spread of one rank's own orders of reduction a layout may be away. Were its losses one more draw
# from those that the orders are drawn from, normal with deviation s, then the range of 8 orders is 2.8 s in the mean,
# and the distance of a draw from one of them has a deviation of 1.4 s; of a layout that rounds twice as often, once
# more where parts of a product meet, 1.7 s. 3 ranges are 5 such deviations: one independent step in a million is
# further off.
SPREADS = 3


def distances(one: dict, other: dict) -> dict:
    """By step; infinite where a step is missing or not a number."""
    away = {step: abs(loss - other.get(step, math.inf)) for step, loss in one.items()}
    return {step: math.inf if math.isnan(distance) else distance for step, distance in away.items()}


def spread(runs: list[dict], exact: dict | None = None) -> dict:
    """By step, the largest distance so far between any two of the runs of one rank.

    `exact` is one without rounding, of the steps in which it has the runs' parameters.
    """
    found, most = {}, 0.0
    for step in runs[0]:
        values = [run[step] for run in runs] + ([exact[step]] if exact and step in exact else [])
        most = max(most, max(values) - min(values))
        found[step] = most
    return found
