"""tools/dev build: the CUDA toolkit is the one that nvcc itself names."""

import os
import pathlib
import tempfile
import unittest
from unittest import mock

import _path  # noqa: F401
import build


class CudaToolkit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.toolkit = self.folder / "cuda-13.0"
        self.program(self.toolkit / "bin/nvcc", f"echo '#$ TOP={self.toolkit}/bin/..' >&2")

    def program(self, path: pathlib.Path, line: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)

    def found(self, on_path: str, **variables: str) -> pathlib.Path:
        path = f"{self.folder / on_path}:/usr/bin:/bin"
        with mock.patch.dict(os.environ, {"PATH": path, **variables}):
            if "CUDA_PATH" not in variables:
                os.environ.pop("CUDA_PATH", None)
            return build.cuda_toolkit()

    def test_a_script_on_the_path_stands_for_the_compiler_that_it_calls(self):
        self.program(self.folder / "bin/nvcc", f'exec {self.toolkit}/bin/nvcc "$@"')
        self.assertEqual(self.found("bin"), self.toolkit)

    def test_a_link_on_the_path_stands_for_its_target(self):
        (self.folder / "links").mkdir()
        (self.folder / "links/nvcc").symlink_to(self.toolkit / "bin/nvcc")
        self.assertEqual(self.found("links"), self.toolkit)

    def test_what_the_user_names_comes_first(self):
        other = self.folder / "other"
        self.program(other / "bin/nvcc", "exit 1")
        self.assertEqual(self.found("cuda-13.0/bin", CUDA_PATH=str(other)), other)


if __name__ == "__main__":
    unittest.main()
