"""Opens libweft_torch.so, after a look at whether this PyTorch is the one that it was built for."""

import os
import pathlib

import torch

TORCH = "2.11"  # c10d's classes differ between minor versions

_FOLDER = pathlib.Path(__file__).resolve().parent.parent / "lib"
_opened: int | None = None  # by which process


def check_torch() -> None:
    """Raises ImportError where PyTorch is of another version, or has no torch.distributed."""
    version = torch.__version__.split("+")[0]
    if ".".join(version.split(".")[:2]) != TORCH:
        raise ImportError(
            f"weft.torch is built for PyTorch {TORCH}, but this is {torch.__version__}: install "
            f"torch=={TORCH}.*, or a weft that is built for it")
    if not torch.distributed.is_available():
        raise ImportError(
            "weft.torch needs torch.distributed, which this PyTorch was built without")


def library() -> pathlib.Path:
    """Where the library is: in the package, or where WEFT_TORCH_LIBRARY says."""
    return pathlib.Path(os.environ.get("WEFT_TORCH_LIBRARY") or _FOLDER / "libweft_torch.so")


def operators():
    """torch.ops.weft, with the library opened; ImportError with the reason where it cannot be."""
    global _opened
    if _opened is None:
        check_torch()
        path = library()
        if not path.exists():
            raise ImportError(f"weft.torch: there is no {path}: install the wheel "
                              "(tools/dev build wheel, then pip install dist/weft-*.whl)")
        try:
            torch.ops.load_library(str(path))
        except OSError as error:
            raise ImportError(f"weft.torch: the library cannot be loaded: {error}") from error
        _opened = os.getpid()
    return torch.ops.weft
