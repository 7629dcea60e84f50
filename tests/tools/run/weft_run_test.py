"""weft-run with small programs as ranks: exit statuses, output, signals, and nobody left over."""

import errno
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import subprocess
import tempfile
import unittest

from processes import is_zombie, of_job, program, until

# A bound on hangs; a run takes milliseconds.
PATIENCE = 60


class WeftRunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.job = f"test-{os.getpid()}-{self.id().rsplit('.', 1)[1]}"[:63]

    def tearDown(self):
        until(lambda: not of_job(self.job), PATIENCE)

    def command(self, *arguments: str) -> list[str]:
        return [program("weft-run"), "--job", self.job, *arguments]

    def launch(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True,
                              timeout=PATIENCE, check=False, **options)

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **options)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait, PATIENCE)
        self.addCleanup(process.kill)
        return process

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def write(self, name: str, text: str) -> str:
        path = pathlib.Path(self.path(name))
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return str(path)

    def plan(self, ranks: int, order: str) -> str:
        """A plan directory, made by hand, in which this machine is the host "here"."""
        self.write("plan/fabric.toml",
                   '[[nodes]]\nhosts = "here,there"\n[[nodes]]\nswitches = "leaf0"\n'
                   '[[cables]]\npairs = [["here,there", "leaf0"]]\n')
        self.write("plan/hashes.txt", "weft-hashes 1\n")
        self.write("plan/paths.txt", f"weft-paths 1\nranks {ranks}\nhost here 127.0.0.1 leaf0\n"
                                     "host there 192.0.2.1 leaf0\n")
        self.write("plan/ranks.txt", order)
        return self.path("plan")

    def wait_for_files(self, *names: str):
        until(lambda: all(os.path.exists(self.path(name)) for name in names), PATIENCE)

    # ---- What ranks are given

    def test_ranks_have_torchruns_environment(self):
        result = self.launch("-n", "2", "--set", "tcp.sockets=3", "--", "sh", "-c",
                             "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK "
                             "$MASTER_ADDR ${#WEFT_JOB_SECRET} $WEFT_JOB_ID $WEFT_TCP_SOCKETS")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()),
                         [f"[rank {r}] {r} {r} 2 2 0 127.0.0.1 64 {self.job} 3" for r in (0, 1)])

    def test_threads_are_shared_unless_set(self):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        show = ("-n", "64", "--output", "rank0", "sh", "-c", "echo $OMP_NUM_THREADS")
        self.assertGreaterEqual(int(self.launch(*show, env=environment).stdout), 1)
        environment["OMP_NUM_THREADS"] = "7"
        self.assertEqual(self.launch(*show, env=environment).stdout, "7\n")

    def test_several_hosts_number_their_ranks(self):
        environment = dict(os.environ, WEFT_JOB_SECRET="ab" * 32)
        result = self.launch("-n", "2", "--nnodes", "3", "--node-rank", "2", "--master-addr",
                             "node0", "--master-port", "29500", "--output", "rank0", "--log-dir",
                             self.folder, "sh", "-c",
                             "echo $RANK $WORLD_SIZE $GROUP_RANK $WEFT_STORE $MASTER_PORT",
                             env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        with open(self.path("rank-5.log"), encoding="utf-8") as log:
            # Not the root's address, but that of a relay of this host.
            self.assertRegex(log.read(), r"^5 6 2 unix:weft-relay-[0-9a-f]{32} 29500\n$")

    def test_bind_gives_each_rank_cores(self):
        result = self.launch("-n", "2", "--bind", "core", "--no-prefix", "sh", "-c",
                             "grep Cpus_allowed_list /proc/self/status")
        self.assertEqual(result.returncode, 0, result.stderr)
        if len(os.sched_getaffinity(0)) >= 2:
            self.assertEqual(len(set(result.stdout.splitlines())), 2)

    def test_bound_ranks_know_the_cores_of_the_whole_job(self):
        show = ("--no-prefix", "sh", "-c", "echo $WEFT_JOB_CORES")
        free = set(self.launch("-n", "2", *show).stdout.split())
        bound = set(self.launch("-n", "2", "--bind", "core", *show).stdout.split())
        self.assertEqual(len(free), 1)
        self.assertEqual(bound, free)
        self.assertLessEqual(int(free.pop()), len(os.sched_getaffinity(0)))

    # ---- A plan

    def test_ranks_of_a_plan_have_its_numbers_wherever_they_are_named(self):
        plan = self.plan(4, "0 here 1\n1 here 0\n2 there 0\n3 there 1\n")
        result = self.launch("-n", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "node0",
                             "--master-port", "29500", "--plan", plan, "--log-dir", self.path("logs"), "--json",
                             "--", "sh", "-c", "echo $RANK $LOCAL_RANK $GROUP_RANK",
                             env=dict(os.environ, WEFT_JOB_SECRET="ab" * 32))
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(sorted(lines[:-1]), ["[rank 0] 0 1 1", "[rank 1] 1 0 1"])
        self.assertEqual(sorted(row["rank"] for row in json.loads(lines[-1])["ranks"]), [0, 1])
        self.assertEqual(sorted(os.listdir(self.path("logs"))), ["rank-0.log", "rank-1.log"])
        for rank in 0, 1:
            with open(self.path(f"logs/rank-{rank}.log"), encoding="utf-8") as log:
                self.assertEqual(log.read(), f"{rank} {1 - rank} 1\n")

    def test_rank_0_of_a_plan_is_the_one_that_is_shown_alone(self):
        result = self.launch("-n", "2", "--plan", self.plan(2, "0 here 1\n1 here 0\n"), "--output", "rank0", "--",
                             "sh", "-c", "echo $RANK")
        self.assertEqual(result.stdout, "0\n", result.stderr)

    def test_a_rank_of_a_plan_that_ends_is_judged_and_named_by_its_number(self):
        # Rank 1, in the first place here, says that it has failed itself; twice, and no start helps.
        script = f"if [ $RANK = 1 ]; then echo 'confused [process rank=1]'; exit 1; fi; " \
                 f"while [ ! -e {self.path('never')} ]; do sleep 0.01; done"
        result = self.launch("-n", "2", "--plan", self.plan(2, "0 here 1\n1 here 0\n"), "--recover", "5", "--json",
                             "--", "sh", "-c", script)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, r"rank 1 \(pid \d+\) exited with status 1 .*starting it anew \(1 of 5\)")
        self.assertIn("weft-run: rank 1 exited with status 1: confused [process rank=1], as the process before it did",
                      result.stderr)
        summary = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual(summary["first_failed"], 1)
        self.assertEqual({row["rank"]: row["restarts"] for row in summary["ranks"]}, {0: 0, 1: 1})

    def test_a_plan_whose_ranks_are_not_each_there_once_is_refused_by_its_line(self):
        for order, message in (("0 here 0\n0 here 1\n", "ranks.txt:2: rank 0 on GPU 1 of here"),
                               ("0 here 0\n1 here 0\n", "ranks.txt:2: rank 1 on GPU 0 of here"),
                               ("0 here 0\n2 here 1\n", "ranks.txt:2: rank 2 on GPU 1 of here"),
                               ("-1 here 0\n1 here 1\n", "ranks.txt:1: rank -1 on GPU 0 of here"),
                               ("1 here 0\n", "ranks.txt: rank 0 of 2 is missing"),
                               ("0 here\n", "ranks.txt:1: a line is RANK HOST GPU")):
            result = self.launch("-n", "2", "--plan", self.plan(2, order), "--", "echo", "started")
            self.assertEqual(result.returncode, 3, order)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stdout, "", order)

    # ---- Starting anew

    def test_a_rank_that_died_is_started_anew_and_knows_how_the_one_before_ended(self):
        # Rank 1 kills itself, then fails, then is done; the others wait for that.
        script = ('echo "$RANK $WEFT_GENERATION $WEFT_LAST_END"; '
                  f'if [ $RANK = 1 ]; then case $WEFT_GENERATION in '
                  f'"") kill -9 $$;; 1) exit 1;; 2) touch {self.path("done")};; esac; fi; '
                  f'while [ ! -e {self.path("done")} ]; do sleep 0.01; done')
        result = self.launch("-n", "3", "--recover", "2", "--json", "--no-prefix", "--", "sh",
                             "-c", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertIn("1 1 was killed by signal 9 (SIGKILL)", lines)
        # With the last line that it wrote: what programs end with is why.
        self.assertIn("1 2 exited with status 1: 1 1 was killed by signal 9 (SIGKILL)", lines)
        self.assertEqual([rank["restarts"] for rank in json.loads(lines[-1])["ranks"]], [0, 2, 0])
        self.assertIn("starting it anew (2 of 2)", result.stderr)

    def test_a_process_that_wrote_nothing_has_no_line_of_the_one_before(self):
        script = ('case $RANK$WEFT_GENERATION in 1) echo "no room"; exit 1;; 11) exit 1;; '
                  f'12) echo "$WEFT_LAST_END"; touch {self.path("done")};; esac; '
                  f'while [ ! -e {self.path("done")} ]; do sleep 0.01; done')
        result = self.launch("-n", "2", "--recover", "2", "--no-prefix", "--", "sh", "-c", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines(), ["no room", "exited with status 1"])

    def test_what_starting_anew_does_not_mend_ends_the_job(self):
        wait = f'while [ ! -e {self.path("never")} ]; do sleep 0.01; done'
        for word, status, restarts in (("exit 1", 1, 2), ("exit 2", 2, 0), ("kill -9 $$", 137, 2),
                                       ("echo no; exit 1", 1, 1)):
            script = f'if [ $RANK = 1 ]; then {word}; fi; {wait}'
            result = self.launch("-n", "2", "--recover", "2", "--json", "--", "sh", "-c", script)
            self.assertEqual(result.returncode, status, result.stderr)
            summary = json.loads(result.stdout.splitlines()[-1])
            self.assertEqual(summary["ranks"][1]["restarts"], restarts, word)
            self.assertEqual(summary["first_failed"], 1)

    def test_a_rank_that_dies_at_once_is_started_anew_after_pauses_that_double(self):
        result = self.launch("-n", "1", "--recover", "4", "--backoff", "20ms", "--backoff-most",
                             "50ms", "--", "sh", "-c", "kill -9 $$")
        self.assertEqual(result.returncode, 137, result.stderr)
        pauses = re.findall(r"generation (\d)\) on here later: in (\d+ms)", result.stderr)
        self.assertEqual(pauses, [("2", "20ms"), ("3", "40ms"), ("4", "50ms")])

    def test_a_program_that_is_gone_when_its_pause_is_over_ends_the_job(self):
        script = self.write("program", '#!/bin/sh\n[ -e "$0.once" ] && rm "$0"\ntouch "$0.once"\n'
                                       "echo out of luck\nkill -9 $$\n")
        os.chmod(script, 0o755)
        result = self.launch("-n", "1", "--recover", "5", "--backoff", "50ms", "--json", "--", script)
        self.assertEqual(result.returncode, 137, result.stderr)
        self.assertIn("No such file or directory", result.stderr)
        self.assertIn("last lines of rank 0:\n    out of luck\n", result.stderr)
        self.assertEqual(json.loads(result.stdout.splitlines()[-1])["first_failed"], 0)

    def test_a_signal_ends_a_job_whose_only_rank_waits_for_its_start(self):
        launcher = subprocess.Popen(
            [program("weft-run"), "-n", "1", "--recover", "9", "--backoff", "1h", "--backoff-most",
             "1h", "--", "sh", "-c", "kill -9 $$"], stderr=subprocess.PIPE, text=True)
        for line in launcher.stderr:
            if "later" in line:
                break
        launcher.terminate()
        launcher.stderr.read()
        launcher.stderr.close()
        self.assertEqual(launcher.wait(PATIENCE), 128 + signal.SIGTERM)

    def test_a_last_line_without_an_end_is_why_and_no_part_of_the_next_process_lines(self):
        script = 'if [ -z "$WEFT_GENERATION" ]; then printf "no room"; exit 1; fi; echo "$WEFT_LAST_END"'
        result = self.launch("-n", "1", "--recover", "1", "--no-prefix", "--", "sh", "-c", script)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines(), ["no room", "exited with status 1: no room"])

    def test_a_rank_is_not_started_anew_once_another_is_done(self):
        script = (f'if [ $RANK = 0 ]; then exit 0; fi; '
                  f'while kill -0 $(cat {self.path("pid")}) 2>/dev/null; do sleep 0.01; done; '
                  'exit 1')
        script = f'if [ $RANK = 0 ]; then echo $$ > {self.path("pid")}; fi; ' \
                 f'while [ ! -s {self.path("pid")} ]; do sleep 0.01; done; {script}'
        result = self.launch("-n", "2", "--recover", "5", "--", "sh", "-c", script)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("starting it anew", result.stderr)

    # ---- Exit statuses

    def test_success_is_zero_and_in_the_summary(self):
        result = self.launch("-n", "3", "--json", "true")
        self.assertEqual(result.returncode, 0, result.stderr)
        summary = json.loads(result.stdout.splitlines()[-1])
        self.assertEqual(summary["exit_status"], 0)
        self.assertEqual([row["rank"] for row in summary["ranks"]], [0, 1, 2])
        for row in summary["ranks"]:
            self.assertEqual((row["exit"], row["signal"]), (0, None))
            self.assertGreater(row["max_rss"], 0)

    def test_the_first_failing_ranks_status_is_the_jobs(self):
        result = self.launch("-n", "4", "sh", "-c", "echo before the end; "
                             "[ $RANK = 2 ] && { echo the cause >&2; exit 42; }; exec sleep 100")
        self.assertEqual(result.returncode, 42)
        self.assertRegex(result.stderr, r"weft-run: rank 2 \(pid \d+\) exited with status 42 after")
        last_lines = result.stderr.split("last lines of rank 2:\n")[1]
        self.assertIn("    before the end\n", last_lines)
        self.assertIn("    the cause\n", last_lines)

    def test_a_last_line_without_an_end_is_among_the_last_lines(self):
        result = self.launch("-n", "1", "--", "sh", "-c", "printf 'disk is full' >&2; exit 1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("last lines of rank 0:\n    disk is full\n", result.stderr)

    def test_a_rank_killed_by_a_signal_ends_the_job_whatever_the_grace(self):
        # The others ignore SIGTERM, and --grace is of forwarded signals alone.
        process = self.start("-n", "4", "--json", "--grace", "1h", "sh", "-c",
                             'trap "" TERM; echo $$ > $0/pid-$RANK.new; '
                             "mv $0/pid-$RANK.new $0/pid-$RANK; while :; do sleep 1; done",
                             self.folder)
        self.wait_for_files("pid-0", "pid-1", "pid-2", "pid-3")
        with open(self.path("pid-3"), encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGSEGV)
        output, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 128 + signal.SIGSEGV)
        self.assertRegex(errors, r"rank 3 \(pid \d+\) was killed by signal 11 \(SIGSEGV\)")
        summary = json.loads(output.splitlines()[-1])
        self.assertEqual(summary["first_failed"], 3)
        self.assertEqual(summary["ranks"][3]["signal"], signal.SIGSEGV)
        self.assertEqual(summary["ranks"][0]["signal"], signal.SIGKILL)

    def test_a_program_that_is_not_there(self):
        result = self.launch("-n", "2", "no-such-program")
        self.assertEqual(result.returncode, 127)
        self.assertIn("'no-such-program': No such file or directory", result.stderr)
        plain = self.path("plain")
        with open(plain, "w", encoding="utf-8"):
            pass
        self.assertEqual(self.launch("-n", "2", plain).returncode, 126)
        self.assertEqual(self.launch("-n", "2", plain + "/below-a-file").returncode, 126)

    def test_a_program_that_the_system_has_no_room_for(self):
        # 128 KiB are the most that Linux takes of one argument or variable (execve(2)): the option
        # stays below it, and the variable that it becomes, whose name is longer, does not.
        most = 128 << 10
        value = "x" * (most - len("tcp.interface=") - 1)
        result = self.launch("-n", "1", "--set", f"tcp.interface={value}", "true")
        self.assertEqual(result.returncode, 1)
        self.assertIn("start 'true': Argument list too long", result.stderr)

    def test_wrong_options_are_refused(self):
        for wrong in (["--no-such"], ["-n", "0", "true"], [], ["--set", "tcp.sokets=1", "true"],
                      ["--grace", "soon", "true"], ["--nnodes", "2", "true"],
                      ["--store", "nowhere", "true"], ["--output", "some", "true"],
                      ["--plan", "/nowhere", "true"]):
            result = self.launch(*wrong)
            self.assertEqual(result.returncode, 2, wrong)
            self.assertTrue(result.stderr, wrong)
        self.assertEqual(self.launch("--help").returncode, 0)

    def test_arguments_after_the_program_are_its_own(self):
        result = self.launch("--no-prefix", "--", "echo", "-n", "--json", "--", "x")
        self.assertEqual(result.stdout, "--json -- x\n")
        self.assertEqual(self.launch("--no-prefix", "echo", "--", "--json").stdout, "-- --json\n")

    # ---- Output

    def test_output_and_errors_stay_apart_and_are_logged_together(self):
        result = self.launch("-n", "2", "--log-dir", self.path("logs"), "sh", "-c",
                             "echo out; echo err >&2; printf 'no end'")
        self.assertIn("[rank 1] out\n", result.stdout)
        self.assertIn("[rank 1] no end\n", result.stdout)
        self.assertEqual(sorted(result.stderr.splitlines()), ["[rank 0] err", "[rank 1] err"])
        with open(self.path("logs/rank-1.log"), encoding="utf-8") as log:
            text = log.read()
        self.assertIn("out\n", text)
        self.assertIn("err\n", text)

    def test_one_ranks_output_as_it_is(self):
        command = self.command("-n", "3", "--output", "rank0", "sh", "-c", r"printf 'a\rb %s' $RANK")
        self.assertEqual(subprocess.run(command, capture_output=True, timeout=PATIENCE,
                                        check=True).stdout, b"a\rb 0")
        self.assertEqual(self.launch("-n", "3", "--output", "none", "echo", "x").stdout, "")

    def test_the_summary_is_a_line_of_its_own_behind_raw_output_without_an_end(self):
        result = self.launch("-n", "1", "--output", "rank0", "--json", "printf", "done")
        lines = result.stdout.splitlines()
        self.assertEqual(lines[:-1], ["done"], result.stdout)
        self.assertEqual(json.loads(lines[-1])["exit_status"], 0)

    def test_lines_of_many_ranks_stay_whole(self):
        result = self.launch("-n", "8", "sh", "-c",
                             "i=0; while [ $i -lt 200 ]; do echo line $i of $RANK; i=$((i+1)); done")
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 8 * 200)
        for rank in range(8):
            own = [line for line in lines if line.startswith(f"[rank {rank}] ")]
            self.assertEqual(own, [f"[rank {rank}] line {i} of {rank}" for i in range(200)])

    def read_terminal(self, master: int) -> str:
        """All that was written to a terminal whose other end everybody has closed: it comes in parts."""
        shown = b""
        while True:
            self.assertTrue(select.select([master], [], [], PATIENCE)[0], shown)
            try:
                shown += os.read(master, 4096)
            except OSError as error:
                self.assertEqual(error.errno, errno.EIO)  # the end
                return shown.decode()

    def test_rank_0_draws_on_a_terminal(self):
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen(
            self.command("-n", "2", "sh", "-c",
                         'if [ $RANK = 0 ]; then [ -t 1 ] && printf "\\r50%%"; touch $0/drawn; '
                         "while ! [ -e $0/said ]; do sleep 0.01; done; "
                         'printf "\\r100%%\\n"; else while ! [ -e $0/drawn ]; do sleep 0.01; done; '
                         "[ -t 1 ] || echo hello; touch $0/said; fi", self.folder),
            stdout=slave, stderr=slave, stdin=subprocess.DEVNULL)
        os.close(slave)
        self.assertEqual(process.wait(PATIENCE), 0)
        shown = self.read_terminal(master)
        self.assertIn("\r50%", shown)
        self.assertIn("100%\r\n", shown)
        self.assertIn("[rank 1] hello\r\n", shown)

    def test_a_reader_that_leaves_does_not_stop_the_ranks(self):
        process = self.start("-n", "2", "sh", "-c",
                             "while ! [ -e $0/go ]; do sleep 0.01; done; i=0; "
                             "while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done; "
                             "touch $0/done-$RANK", self.folder)
        process.stdout.close()
        with open(self.path("go"), "w", encoding="utf-8"):
            pass
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertTrue(os.path.exists(self.path("done-1")))

    def test_output_that_a_full_disk_takes_none_of_is_a_failure_that_is_named(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run(self.command("-n", "1", "--", "sh", "-c", f"echo x; touch {self.path('done')}"),
                                    stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("write to standard output: No space left on device", result.stderr)
        self.assertTrue(os.path.exists(self.path("done")))

    def test_a_log_at_the_limit_of_file_sizes_is_cut_and_the_job_goes_on(self):
        # The limit does not bind standard output, which is a pipe.
        result = self.launch("-n", "1", "--log-dir", self.path("logs"), "--", "sh", "-c",
                             "head -c 9999 /dev/zero | tr '\\0' x; echo; echo after",
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(f"its log is cut: write {self.path('logs')}/rank-0.log: File too large", result.stderr)
        self.assertIn("[rank 0] after", result.stdout)

    def test_a_slow_reader_gets_everything(self):
        process = self.start("-n", "2", "--no-prefix", "sh", "-c",
                             "i=0; while [ $i -lt 60000 ]; do echo 0123456789012345678901234567890; "
                             "i=$((i+1)); done; touch $0/done-$RANK", self.folder)
        # More than all buffers hold, so the ranks cannot end before we read.
        until(lambda: len(of_job(self.job)) > 1, PATIENCE)
        output, _ = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(output.count("\n"), 2 * 60000)

    # ---- Signals

    def interrupt(self, number: int, trap: str) -> subprocess.CompletedProcess:
        process = self.start("-n", "3", "--grace", f"{PATIENCE}s", "sh", "-c",
                             f"{trap}; touch $0/up-$RANK; while :; do sleep 0.02; done",
                             self.folder)
        self.wait_for_files("up-0", "up-1", "up-2")
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess([], process.returncode, output, errors)

    def test_signals_to_end_are_passed_on(self):
        for number, name in ((signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"),
                             (signal.SIGHUP, "HUP")):
            for up in ("up-0", "up-1", "up-2"):
                if os.path.exists(self.path(up)):
                    os.remove(self.path(up))
            result = self.interrupt(number, f'trap "echo told; exit 0" {name}')
            self.assertEqual(result.returncode, 128 + number)
            self.assertEqual(result.stdout.count("told"), 3, result)

    def test_ranks_that_do_not_listen_are_killed(self):
        process = self.start("-n", "2", "--grace", "100ms", "sh", "-c",
                             'trap "" TERM; touch $0/up-$RANK; while :; do sleep 0.02; done',
                             self.folder)
        self.wait_for_files("up-0", "up-1")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)

    def test_user_signals_reach_the_ranks_and_end_nothing(self):
        process = self.start("-n", "2", "sh", "-c",
                             'trap "touch $0/told-$RANK" USR1; trap "exit 0" USR2; '
                             "touch $0/up-$RANK; while :; do sleep 0.02; done", self.folder)
        self.wait_for_files("up-0", "up-1")
        process.send_signal(signal.SIGUSR1)
        self.wait_for_files("told-0", "told-1")
        process.send_signal(signal.SIGUSR2)
        process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0)

    # ---- Nobody is left over

    def test_a_killed_launcher_leaves_no_process(self):
        process = self.start("-n", "4", "sh", "-c",
                             'trap "" TERM HUP; sleep 1000 & touch $0/up-$RANK; '
                             "while :; do sleep 1; done", self.folder)
        self.wait_for_files("up-0", "up-1", "up-2", "up-3")
        # The sleepers too: a process has no environment while it begins a program.
        until(lambda: len(of_job(self.job)) >= 8, PATIENCE)
        process.kill()
        process.wait()
        until(lambda: not of_job(self.job), PATIENCE)

    # Sleepers in sessions of their own: a child of the rank; one whose parent has ended, so that it
    # belongs to nobody of the job; one of another session's leader, without an environment.
    SLEEPERS = ("setsid sh -c 'echo $$ > $0/child; exec sleep 1000' $0 & "
                "(setsid sh -c 'echo $$ > $0/orphan; exec sleep 1000' $0 &); "
                "env -i $(command -v setsid) sh -c "
                "'setsid sh -c \"echo \\$\\$ > $0/deep; exec sleep 1000\" & exec sleep 1000' $0 & ")

    def sleepers(self) -> list[int]:
        def pids():
            paths = [pathlib.Path(self.path(name)) for name in ("child", "orphan", "deep")]
            texts = [path.read_text("utf-8") for path in paths if path.exists()]
            return [int(text) for text in texts if text.endswith("\n")]
        until(lambda: len(pids()) == 3, PATIENCE)
        self.addCleanup(self.kill_all, pids())
        return pids()

    def kill_all(self, pids: list[int]):
        for pid in pids:
            if not is_zombie(pid):
                os.kill(pid, signal.SIGKILL)

    def test_a_killed_launcher_leaves_nothing_in_other_sessions(self):
        process = self.start("-n", "2", "sh", "-c",
                             'test $RANK = 1 || { ' + self.SLEEPERS + '}; sleep 1000', self.folder)
        pids = self.sleepers()
        process.kill()
        process.wait()
        until(lambda: all(is_zombie(pid) for pid in pids), PATIENCE)

    def test_a_killed_keeper_ends_the_job_and_leaves_nothing(self):
        process = self.start("-n", "2", "sh", "-c",
                             'test $RANK = 1 || { ' + self.SLEEPERS + 'echo $PPID > $0/keeper; }; '
                             'sleep 1000', self.folder)
        pids = self.sleepers()
        self.wait_for_files("keeper")
        with open(self.path("keeper"), encoding="utf-8") as file:
            keeper = int(until(file.readline, PATIENCE))
        self.assertNotEqual(keeper, process.pid)
        os.kill(keeper, signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL, errors)
        self.assertRegex(errors, r"rank 0 \(pid \d+\) was killed by signal 9")
        self.assertTrue(all(is_zombie(pid) for pid in pids))

    def test_what_a_rank_left_behind_ends_with_the_rank(self):
        process = self.start("-n", "2", "sh", "-c",
                             'if test $RANK = 0; then ' + self.SLEEPERS + 'while ! test -e $0/end; '
                             'do sleep 0.02; done; else while ! test -e $0/all; do sleep 0.02; '
                             'done; fi', self.folder)
        pids = self.sleepers()
        with open(self.path("end"), "w", encoding="utf-8"):
            pass
        until(lambda: all(is_zombie(pid) for pid in pids), PATIENCE)
        self.assertIsNone(process.poll())
        with open(self.path("all"), "w", encoding="utf-8"):
            pass
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_what_a_rank_left_behind_may_write_without_end(self):
        # In a session of its own: only the launcher ends it, once it has seen the rank's end.
        flood = "setsid sh -c 'touch $0/up; exec yes' $0 & while ! test -e $0/up; do sleep 0.01; done; exit 3"
        result = self.launch("-n", "2", "--output", "none", "sh", "-c",
                             f"if test $RANK = 0; then {flood}; fi; sleep 1000", self.folder)
        self.assertEqual(result.returncode, 3, result.stderr)

    # ---- Open files

    def test_too_few_open_files_are_the_error_at_once_with_what_is_needed(self):
        result = self.launch("-n", "2", "sh", "-c", "echo started", preexec_fn=lambda:
                             resource.setrlimit(resource.RLIMIT_NOFILE, (19, 19)))
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")
        needed = re.search(r"take (\d+) open files, but the limit is 19 \(ulimit -Hn\)",
                           result.stderr)
        self.assertIsNotNone(needed, result.stderr)
        limit = int(needed[1])
        result = self.launch("-n", "2", "sh", "-c", "ulimit -n", preexec_fn=lambda:
                             resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_launcher_raises_its_own_limit_and_not_its_ranks(self):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # 64 ranks take more than 100 here; each is left with what the launcher began with.
        result = self.launch("-n", "64", "--no-prefix", "sh", "-c", "ulimit -Sn; ulimit -Hn",
                             preexec_fn=lambda:
                             resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard)))
        self.assertEqual(result.returncode, 0, result.stderr)
        text = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        self.assertEqual(sorted(result.stdout.split()), sorted(["100", text] * 64))

    def test_what_ranks_left_behind_ends_with_the_job(self):
        result = self.launch("-n", "2", "sh", "-c",
                             "setsid sleep 1000 & sleep 1000 & echo started")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(of_job(self.job), [])

    def test_sixty_four_ranks(self):
        result = self.launch("-n", "64", "sh", "-c", "echo $RANK")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual({line.split()[-1] for line in result.stdout.splitlines()},
                         {str(rank) for rank in range(64)})

    # ---- The store on its own

    def test_a_store_of_its_own_serves_several_launchers(self):
        environment = dict(os.environ, WEFT_JOB_SECRET="cd" * 32)
        store = subprocess.Popen([program("weft-store"), "--json"], stdout=subprocess.PIPE,
                                 text=True, env=environment)
        self.addCleanup(store.stdout.close)
        self.addCleanup(store.wait, PATIENCE)
        self.addCleanup(store.kill)
        address = json.loads(store.stdout.readline())["address"]
        result = self.launch("--store", address, "--no-prefix", "sh", "-c", "echo $WEFT_STORE",
                             env=environment)
        self.assertEqual(result.stdout, address + "\n")
        store.send_signal(signal.SIGUSR1)
        self.assertEqual(json.loads(store.stdout.readline())["pid"], store.pid)
        store.terminate()
        self.assertEqual(store.wait(PATIENCE), 0)
        self.assertTrue(is_zombie(store.pid))


if __name__ == "__main__":
    unittest.main()
