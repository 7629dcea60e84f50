"""The model that tests of PyTorch's features train, and how they compare backends."""

import installed

import unittest

import torch
from torch import nn

STEPS = 3
WIDTH = 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.second = nn.Linear(4 * WIDTH, WIDTH)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def model() -> nn.Module:
    torch.manual_seed(7)
    return Model()


def model_without_unused() -> nn.Module:
    """For what wants a gradient of every parameter."""
    module = model()
    del module.unused
    return module


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def train(module, optimizer, rank: int) -> list[float]:
    losses = []
    for step in range(STEPS):
        loss = (module(batch(rank, step)) - batch(rank, step + 50)).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def sgd(module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


class BesideGloo(unittest.TestCase):
    """The same program on both backends. With two ranks a sum has one order, so that what the ranks
    return is equal to the bit; with more it is close."""

    def compare(self, size: int, body, *arguments) -> None:
        ours = installed.fork_ranks(size, body, *arguments)
        gloos = installed.fork_ranks(size, body, *arguments, backend="gloo")
        if size == 2:
            self.assertEqual(ours, gloos)
        for own, right in zip(ours, gloos, strict=True):
            torch.testing.assert_close(torch.tensor(own), torch.tensor(right), rtol=1e-3, atol=1e-4)


def add_tests(case: type[BesideGloo], bodies, sizes) -> None:
    """Adds to `case` a test for each body on each number of ranks."""
    def add(body, size: int) -> None:
        setattr(case, f"test_{body.__name__}_on_{size}_ranks",
                lambda self: self.compare(size, body))

    for body in bodies:
        for size in sizes:
            add(body, size)
