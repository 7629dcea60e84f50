"""The wheel: what it holds and needs, how it is found, and what is said where something is missing.
"""

import installed

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

SITE = installed.SITE
LIBRARIES = sorted((SITE / "weft/lib").glob("*.so*"))
# Of every Debian, and of PyTorch.
GIVEN = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|torch_cpu|c10)\.so|ld-linux")
PYTHON_SYMBOL = re.compile(r"^(_?Py[A-Z_]|THP)")


def dynamic(library: pathlib.Path) -> str:
    return subprocess.run(["readelf", "-dW", library], capture_output=True, text=True,
                          check=True).stdout


def run(text: str, **environment) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True,
                          timeout=installed.LIMIT, env={**os.environ, **environment})


class Wheel(unittest.TestCase):
    def test_its_libraries_need_only_each_other_pytorch_and_the_c_runtime(self):
        present = {path.name for path in LIBRARIES}
        for library in LIBRARIES:
            if library.name in ("libweft-verbs.so", "libweft-ucx.so"):
                continue  # need RDMA's libraries, and are loaded where somebody asks for them
            for name in re.findall(r"NEEDED.*\[(.+)\]", dynamic(library)):
                self.assertTrue(name in present or GIVEN.match(name), f"{library.name}: {name}")

    def test_its_libraries_look_beside_themselves_first(self):
        for name in ("libweft_torch.so", "libweft_store.so"):
            self.assertIn("(RPATH)              Library rpath: [$ORIGIN]",
                          dynamic(SITE / "weft/lib" / name))

    def test_its_library_names_no_symbol_of_python(self):
        listing = subprocess.run(["nm", "-D", SITE / "weft/lib/libweft_torch.so"],
                                 capture_output=True, text=True, check=True).stdout
        names = [line.split()[-1] for line in listing.splitlines()]
        self.assertEqual([name for name in names if PYTHON_SYMBOL.match(name)], [])

    def test_two_of_one_build_are_the_same_to_the_byte(self):
        with tempfile.TemporaryDirectory() as folder:
            first = installed.make_wheel(pathlib.Path(folder, "a")).read_bytes()
            second = installed.make_wheel(pathlib.Path(folder, "b")).read_bytes()
        self.assertEqual(first, second)

    def test_it_asks_for_the_pytorch_that_it_was_built_for(self):
        from weft.torch import _library

        with tempfile.TemporaryDirectory() as folder:
            wheel = installed.make_wheel(pathlib.Path(folder))
            with zipfile.ZipFile(wheel) as archive:
                (name,) = [n for n in archive.namelist() if n.endswith("METADATA")]
                text = archive.read(name).decode()
            self.assertRegex(wheel.name, r"^weft-[0-9.]+-py3-none-manylinux_2_\d+_\w+\.whl$")
        self.assertIn(f"\nRequires-Dist: torch=={_library.TORCH}.*\n", text)
        self.assertIn(f"\nVersion: {_version_of_the_programs()}\n", text)


    def test_its_platform_has_every_symbol_that_it_asks_of_the_c_libraries(self):
        with tempfile.TemporaryDirectory() as folder:
            glibc = int(re.search(r"manylinux_2_(\d+)_", installed.make_wheel(
                pathlib.Path(folder)).name)[1])
        asked = subprocess.run(["readelf", "-WV", *LIBRARIES], capture_output=True, text=True,
                               check=True).stdout
        self.assertLessEqual(max(map(int, re.findall(r"Name: GLIBC_2\.(\d+)", asked))), glibc)
        # libstdc++ of GCC 11 and 12, which came with these C libraries (the policies of PEP 600).
        cxx = max(map(int, re.findall(r"Name: GLIBCXX_3\.4\.(\d+)", asked)))
        self.assertLessEqual({29: 34, 30: 35}.get(cxx, 0 if cxx < 29 else 99), glibc)

    def test_its_libraries_have_no_debugging_information(self):
        for library in LIBRARIES:
            sections = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True,
                                      check=True).stdout
            self.assertNotIn(".debug_", sections, library.name)
            self.assertNotIn(".symtab", sections, library.name)

    def test_it_says_whose_work_it_holds(self):
        info = importlib.metadata.distribution("weft")
        files = {str(path) for path in info.files}
        for name in info.metadata.get_all("License-File"):
            self.assertIn(f"weft-{info.version}.dist-info/licenses/{name}", files)
        texts = {path.name: path.read_text() for path in
                 (SITE / f"weft-{info.version}.dist-info/licenses/third_party").iterdir()}
        for name, licence in (("libsodium", "ISC"), ("libhiredis", "Salvatore"), ("libabsl", "Apache"),
                              ("nlohmann-json", "Expat"), ("libtoml11", "Permission is hereby granted")):
            (text,) = (text for file, text in texts.items()
                       if file.startswith(name) and not (name == "libabsl" and "-dev" in file))
            self.assertIn(licence, text, name)
        for field in ("Author", "Summary", "License-Expression", "Description-Content-Type"):
            self.assertTrue(info.metadata[field], field)
        self.assertIn('init_process_group("weft")', info.metadata.get_payload())
        self.assertIn("Typing :: Typed", info.metadata.get_all("Classifier"))

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "there is no mypy in this Python")
    def test_its_types_are_right(self):
        done = run("from mypy.__main__ import console_entry; import sys; "
                   "sys.argv = ['mypy', '-p', 'weft', '--no-incremental']; console_entry()")
        self.assertEqual(done.returncode, 0, done.stdout)


def _version_of_the_programs() -> str:
    text = (installed.SOURCE / "CMakeLists.txt").read_text()
    return re.search(r"project\(weft VERSION (\S+)", text)[1]


ALONE = "dist.init_process_group('weft', store=dist.HashStore(), rank=0, world_size=1)\n"


class Import(unittest.TestCase):
    def test_pytorch_alone_knows_the_backend_and_the_stores(self):
        done = run("import sys, torch, torch.distributed as dist\n"
                   "assert 'weft.torch' not in sys.modules\n"
                   "from torch.distributed.rendezvous import _rendezvous_handlers as handlers\n"
                   "assert {'weft', 'redis'} <= handlers.keys()\n" + ALONE +
                   "t = torch.ones(3); dist.all_reduce(t)\n"
                   "print(dist.get_backend(), t.sum().item())")
        self.assertEqual((done.returncode, done.stdout.split()), (0, ["weft", "3.0"]), done.stderr)

    def test_each_module_of_pytorch_that_loads_torchruns_handlers_can_come_first(self):
        # They import torch.distributed.elastic.rendezvous, which loads our entry points amid that.
        for module in ("checkpoint", "run", "elastic.agent.server.local_elastic_agent",
                       "elastic.rendezvous.registry", "launcher.api"):
            done = run(f"import torch.distributed.{module}\n"
                       "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry\n"
                       "print(*sorted(rendezvous_handler_registry._registry))")
            self.assertEqual((done.returncode, done.stderr), (0, ""), module)
            self.assertTrue({"weft", "weft-driver"} <= set(done.stdout.split()), done.stdout)

    def test_it_opens_no_library_before_a_group_is_made(self):
        done = run("import torch, weft.torch\n"
                   "assert 'libweft_torch' not in open('/proc/self/maps').read()")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_the_autoload_it_registers_itself(self):
        done = run("import torch, torch.distributed as dist, weft.torch\n" + ALONE +
                   "dist.destroy_process_group()", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_it_cannot_break_the_import_of_pytorch(self):
        # Whatever it meets: here its own package has a fault.
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "site")
            subprocess.run(["cp", "-r", SITE, package], check=True)
            (package / "weft/_registration.py").write_text("raise KeyError('broken')\n")
            done = run("import torch; print(torch.ones(2).sum().item())",
                       PYTHONPATH=str(package), PYTHONWARNINGS="error")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, "2.0"), done.stderr)

    def test_another_pytorch_is_refused_by_name(self):
        done = run("import torch; torch.__version__ = '2.12.0+cpu'; import weft.torch")
        self.assertIn("ImportError: weft.torch is built for PyTorch 2.11, but this is 2.12.0+cpu",
                      done.stderr)
        done = run("import torch, torch.distributed as dist\ntorch.__version__ = '2.12.0+cpu'\n" +
                   ALONE)
        self.assertIn("ImportError: weft.torch is built for PyTorch 2.11, but this is 2.12.0+cpu",
                      done.stderr)

    def test_a_missing_library_is_named(self):
        done = run("import torch.distributed as dist, weft.torch\n" + ALONE,
                   WEFT_TORCH_LIBRARY="/nowhere/libweft_torch.so")
        self.assertIn("ImportError: weft.torch: there is no /nowhere/libweft_torch.so: install",
                      done.stderr)

    def test_options_are_checked(self):
        done = run("import torch.distributed as dist, weft.torch\n"
                   "o = weft.torch.Options(settings={'transport': 'pigeon'})\n"
                   "dist.init_process_group('weft', store=dist.HashStore(), rank=0, world_size=1,"
                   " pg_options=o)")
        self.assertRegex(done.stderr, r"weft.torch.Options.*transport.*pigeon|transport.*pigeon")
        done = run("import torch.distributed as dist, weft.torch\n"
                   "dist.init_process_group('weft', store=dist.HashStore(), rank=0, world_size=1,"
                   " pg_options=3)")
        self.assertIn("TypeError: the backend weft takes pg_options of type weft.torch.Options",
                      done.stderr)

    def test_options_of_a_groups_other_backend_are_left_to_that(self):
        # As of a group "cuda:nccl,cpu:weft", which PyTorch gives NCCL's to both.
        done = run("import torch.distributed as dist, weft.torch\n"
                   "dist.init_process_group('weft', store=dist.HashStore(), rank=0, world_size=1,"
                   " pg_options=dist.ProcessGroupGloo._Options())\n"
                   "dist.barrier()\n"
                   "print('made')")
        self.assertEqual(done.stdout, "made\n", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
