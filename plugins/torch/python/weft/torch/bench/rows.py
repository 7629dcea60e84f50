"""One measured case, as text and as JSON."""

import dataclasses


@dataclasses.dataclass
class Row:
    part: str  # of the benchmark: "collectives"
    operation: str
    ranks: int
    bytes: int  # of a rank's whole buffer; 0: it has none
    weft_us: float  # a median over the rounds, of the slowest rank
    gloo_us: float | None
    rounds: int
    # Further numbers: microseconds where the name ends so.
    more: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Above 1: ours is faster than Gloo."""
        return None if self.gloo_us is None else self.gloo_us / self.weft_us

    def object(self) -> dict:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)
                  if field.name != "more"}
        return {**values, "ratio": self.ratio, **self.more}

    def text(self) -> str:
        size = size_text(self.bytes) if self.bytes else "-"
        gloo = "-" if self.gloo_us is None else f"{self.gloo_us:.1f}"
        ratio = "-" if self.ratio is None else f"{self.ratio:.2f}"
        more = ", ".join(
            f"{name.removesuffix('_us').replace('_', ' ')} {value:.1f} us"
            if name.endswith("_us") else f"{name} {value:.2f}" for name, value in self.more.items())
        return (f"{self.ranks:5}  {self.operation:28}{size:>9}{self.weft_us:12.1f}{gloo:>12}"
                f"{ratio:>8}  {more}").rstrip()


HEADER = f"{'ranks':>5}  {'operation':28}{'size':>9}{'weft us':>12}{'gloo us':>12}{'ratio':>8}"


def size_text(size: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale and size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"
