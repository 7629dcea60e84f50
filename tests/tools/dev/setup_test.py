"""tools/dev setup: LibTorch is whole or not there, and nothing is done twice."""

import pathlib
import subprocess
import tempfile
import unittest
import zipfile
from unittest import mock

import _path  # noqa: F401
import build
import setup
from common import Failure

CONTENT = {
    "torch": ["torch/include/torch/torch.h", "torch/lib/libtorch_cpu.so", "torch/lib/libc10.so",
              "torch/lib/libgomp.so.1", "torch/lib/libtorch_cuda.so", "torch/__init__.py"],
    "nvidia-cuda-runtime": ["nvidia/cu13/lib/libcudart.so.13"],
    "nvidia-cuda-cupti": ["nvidia/cu13/lib/libcupti.so.13", "nvidia/cu13/lib/libpcsamplingutil.so"],
}


def fake_download(wheel: str, folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    name = wheel.split("==")[0]
    path = folder / f"{name}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member in CONTENT[name]:
            archive.writestr(member, member)
    return path


class LibTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.deps = pathlib.Path(folder.name) / "deps"
        self.download = mock.Mock(side_effect=fake_download)
        for name, value in (("DEPS", self.deps), ("download", self.download), ("say", mock.Mock())):
            patch = mock.patch.object(setup, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.deps)) for path in self.deps.rglob("*")
                      if path.is_file())

    WHOLE = [".lock", "libtorch/include/torch/torch.h", "libtorch/lib/libc10.so",
             "libtorch/lib/libcudart.so.13", "libtorch/lib/libcupti.so.13",
             "libtorch/lib/libgomp.so.1", "libtorch/lib/libtorch_cpu.so", "libtorch/stamp"]

    def test_only_what_is_needed_is_unpacked_and_only_once(self):
        setup.install_libtorch()
        self.assertEqual(self.files(), self.WHOLE)
        setup.install_libtorch()
        self.assertEqual(self.download.call_count, 3)

    def test_another_version_is_replaced(self):
        (self.deps / "libtorch/lib").mkdir(parents=True)
        (self.deps / "libtorch/stamp").write_text("torch==1.0\n")
        (self.deps / "libtorch/lib/old.so").touch()
        setup.install_libtorch()
        self.assertEqual(self.files(), self.WHOLE)

    def test_a_download_that_breaks_off_leaves_nothing_behind(self):
        self.download.side_effect = [fake_download("torch==2", self.deps.parent / "w"),
                                     Failure("the network is down")]
        with self.assertRaises(Failure):
            setup.install_libtorch()
        self.assertEqual(self.files(), [".lock"])
        self.download.side_effect = fake_download
        setup.install_libtorch()
        self.assertEqual(self.files(), self.WHOLE)

    def test_a_wheel_without_a_library_is_an_error_that_names_it(self):
        with mock.patch.dict(CONTENT, {"nvidia-cuda-cupti": ["README"]}):
            with self.assertRaisesRegex(Failure, "holds no libcupti.so.13"):
                setup.install_libtorch()
        self.assertEqual(self.files(), [".lock"])

    def test_one_unpacked_by_hand_is_recognised_only_when_whole(self):
        setup.install_libtorch()
        target = self.deps / "libtorch"
        (target / "stamp").unlink()
        version = target / "include/torch/headeronly/version.h"
        version.parent.mkdir()
        version.write_text('#define TORCH_VERSION \\\n  "2.10.0"\n')
        self.assertFalse(setup.libtorch_is_current(target))
        version.write_text(f'#define TORCH_VERSION \\\n  "{setup.TORCH_VERSION}"\n')
        (target / "lib/libc10.so").rename(target / "lib/aside")
        self.assertFalse(setup.libtorch_is_current(target))
        (target / "lib/aside").rename(target / "lib/libc10.so")
        self.assertTrue(setup.libtorch_is_current(target))
        self.assertTrue((target / "stamp").exists())


class Packages(unittest.TestCase):
    def test_only_missing_ones_are_installed(self):
        listing = subprocess.CompletedProcess([], 1, "git installed\ncmake config-files\n", "")
        with mock.patch.object(setup.subprocess, "run", return_value=listing):
            self.assertEqual(setup.missing_packages(["git", "cmake", "mold"]), ["cmake", "mold"])
        with mock.patch.object(setup, "missing_packages", return_value=[]), \
                mock.patch.object(setup, "execute") as execute:
            setup.install_packages(["git"])
        execute.assert_not_called()


class CudaPreset(unittest.TestCase):
    def test_says_that_there_is_no_toolkit(self):
        with mock.patch.object(build.shutil, "which", return_value=None), \
                mock.patch.object(build.pathlib.Path, "exists", return_value=False):
            with self.assertRaisesRegex(Failure, "needs a CUDA 13 toolkit"):
                build.cuda_toolkit()


if __name__ == "__main__":
    unittest.main()
