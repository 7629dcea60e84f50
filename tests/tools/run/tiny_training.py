"""The configuration of a training run of seconds, for tests of what happens to such runs."""

import random


def write_text(path: str, draw: random.Random):
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 7))) for _ in range(400)]
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(300):
            file.write(" ".join(draw.choices(words, k=60)) + ".\n\n")


def config(prefix, steps: int, global_batch: int, checkpoint_every: int) -> str:
    """On the data set `prefix`, as weft-data prepare writes it. 0: no checkpoint but the last."""
    return f"""
[model]
layers = 1
hidden = 32
heads = 2
sequence = 16
[train]
steps = {steps}
global_batch = {global_batch}
threads = 1
precision = "fp32"
peak_tflops = 1.0
[data]
prefix = "{prefix}"
[validation]
every = 0
batches = 1
[checkpoint]
every = {checkpoint_every}
[sample]
tokens = 0
[log]
trace_steps = 0
"""
