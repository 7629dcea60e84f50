"""Ranks that find torchrun's variables, and no more, in their environment."""

import unittest

import jobs


class TorchrunTest(jobs.LauncherTests, jobs.Test):
    def launch(self, command: list[str]) -> tuple[int, str]:
        return jobs.torchrun(command)


class WeftRunTest(jobs.LauncherTests, jobs.Test):
    def launch(self, command: list[str]) -> tuple[int, str]:
        return jobs.weft_run(command)


if __name__ == "__main__":
    unittest.main()
