"""weft-driver --site kubernetes against an API that this test emulates over TLS, as recorded: the pod of an
evicted host is asked for, its node cordoned, the pod deleted."""

import http.server
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from driven_job import PATIENCE, DrivenJob  # noqa: E402
from processes import until  # noqa: E402

TOKEN = "a-token-of-the-test"
POD = "/api/v1/namespaces/training/pods/a"


class Api(http.server.BaseHTTPRequestHandler):
    """Answers of Kubernetes 1.31 for one pod, cut to what has a meaning here."""

    calls: list[tuple] = []
    refuses = has_no_node = False

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        self.calls.append((self.command, self.path, self.headers.get("Content-Type"), body))
        status, said = 200, {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"nodeName": "node-7"}}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, said = 401, {"kind": "Status", "reason": "Unauthorized"}
        elif self.refuses and self.command == "PATCH":
            status, said = 403, {"kind": "Status", "message": "nodes is forbidden", "reason": "Forbidden"}
        elif self.has_no_node and self.command == "PATCH":
            status, said = 404, {"kind": "Status", "message": 'nodes "node-7" not found', "reason": "NotFound"}
        elif self.path.startswith("/api/v1/nodes/"):
            said = {"kind": "Node", "metadata": {"name": "node-7"}, "spec": {"unschedulable": True}}
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PATCH = do_DELETE = answer

    def log_message(self, *_):
        pass


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        account = self.folder / "account"
        account.mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
                        "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
                        self.folder / "key", "-out", account / "ca.crt"], check=True,
                       capture_output=True)
        (account / "token").write_text(TOKEN)
        (account / "namespace").write_text("training")
        Api.calls, Api.refuses, Api.has_no_node = [], False, False
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(account / "ca.crt", self.folder / "key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.job = DrivenJob(self.folder, f"test-{os.getpid()}-{self.id().rsplit('.', 1)[1]}"[:63],
                             ranks_per_node=1)
        self.addCleanup(self.job.close)
        self.job.environment.update(KUBERNETES_SERVICE_HOST="127.0.0.1",
                                    KUBERNETES_SERVICE_PORT=str(server.server_port))
        self.site = ("--site", "kubernetes", "--service-account", str(account))

    def evict(self):
        driver = self.job.drive(*self.site)
        self.job.join(command=["sleep", "1000"])
        self.job.call("POST", "/evict/a", self.job.token())
        self.job.until_said("driver", "place node 0 on c")
        return driver

    def test_the_pod_of_an_evicted_host_is_deleted_and_its_node_cordoned(self):
        self.evict()
        until(lambda: len(Api.calls) >= 3, PATIENCE)
        self.assertEqual(Api.calls, [
            ("GET", POD, None, ""),
            ("PATCH", "/api/v1/nodes/node-7", "application/merge-patch+json",
             '{"spec":{"unschedulable":true}}'),
            ("DELETE", POD, None, "")])

    def test_the_pod_of_a_node_that_is_gone_is_deleted(self):
        Api.has_no_node = True
        self.evict()
        until(lambda: ("DELETE", POD, None, "") in Api.calls, PATIENCE)
        until(lambda: not self.job.state()["notices"], PATIENCE)
        self.assertNotIn("again in", self.job.said("driver"))

    def test_what_the_api_refuses_is_said_and_the_job_goes_on(self):
        Api.refuses = True
        driver = self.evict()
        self.job.until_said("driver", r"eviction of a: PATCH https://127.0.0.1:\d+/api/v1/nodes/node-7: "
                                      "status 403: .*nodes is forbidden")
        self.assertIsNone(driver.poll())
        self.assertNotIn(TOKEN, self.job.said("driver"))

    def test_an_account_that_is_not_there_is_refused(self):
        shutil.rmtree(self.folder / "account")
        with self.assertRaisesRegex(AssertionError, "has not the files token, ca.crt and namespace"):
            self.job.drive(*self.site)


if __name__ == "__main__":
    for name in ("curl", "openssl"):
        if shutil.which(name) is None:
            print(f"skipped: there is no {name}")
            sys.exit(77)
    unittest.main()
