#!/usr/bin/python3
"""helios-ranktable against an API server that a test can break (tests/support/kube_api.py)."""
from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests")]
sys.dont_write_bytecode = True

from support import kube_api  # noqa: E402
from support.cluster import BUILD, wait_for  # noqa: E402
from support.ranktable_scenarios import (  # noqa: E402
    INITIALIZING,
    KEY,
    WAIT_S,
    Controller,
    Scenarios,
    World,
    devices,
    pod_object,
)
from support.side_by_side import SideBySide  # noqa: E402

# tests, each with its own server and controller, which mostly wait for the controller's rounds
AT_ONCE = 6


class Scripted(World):
    ns = lease_ns = "ns"

    def setUp(self):
        self.server = kube_api.Server()
        self.server.__enter__()
        self.addCleanup(self.server.__exit__, None, None, None)
        self.api = kube_api.client_of(self.server)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.config = self.server.kubeconfig(pathlib.Path(folder.name) / "kubeconfig")

    def controller(self, *flags):
        c = Controller(self.config, *flags)
        self.addCleanup(c.end)
        return c

    def another_namespace(self):
        return "other"

    def kill_server(self):
        self.server.__exit__()

    def start_server(self):
        self.server.forget()
        self.server.__enter__()


class Common(Scripted, Scenarios, unittest.TestCase):
    """What holds with every API server."""


class Faults(Scripted, unittest.TestCase):
    """What only this server can be made to do."""

    def pods_behind_the_scenes(self, job, indices, server=1):
        """Adds them with their devices, faster than by requests."""
        for i in indices:
            pod = pod_object(job, i)
            pod["metadata"]["annotations"][KEY] = devices(server + i)
            self.server.put("pods", pod)

    def test_an_api_server_that_is_back_at_once(self):
        """Starting a real one takes longer than noticing that it has gone."""
        _, c = self.two()
        self.kill_server()
        self.start_server()
        self.delete("pods", "j-w-0")
        self.wait_status("initializing")
        self.assertIsNone(c.process.poll())

    def test_a_write_whose_answer_is_lost(self):
        job = self.job()
        c = self.controller()
        self.server.swallow = 2
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.ranks()
        self.settle(c)
        self.assertEqual(len({text for _, text in self.server.patched if "completed" in text}), 1)

    def test_a_write_whose_answer_is_overtaken(self):
        """Another client's change is seen before the answer to ours,
        which must not bring the old value back."""
        self.server.slow_answers = 1
        self.server.release.clear()
        self.addCleanup(self.server.release.set)
        job = self.job()
        c = self.controller()
        self.pod(job, 0, server=1)
        self.pod(job, 1, server=2)
        self.wait_status("completed")
        self.write(INITIALIZING)
        wait_for(
            "the watch brought it",
            lambda: self.server.sent.get("configmaps", 0) == self.server.version,
            WAIT_S,
        )
        self.server.release.set()
        self.ranks()
        self.settle(c)
        self.assertEqual(self.table()["status"], "completed")

    def test_versions_that_are_forgotten(self):
        _, c = self.two()
        with self.server.lock:  # deleted without notifying a watch
            self.server.delete("pods", self.ns, "j-w-1")
            self.server.forget()
        self.wait_status("initializing")
        self.assertGreater(c.metric('helios_ranktable_lists_total{kind="pods"}'), 1)

    def test_a_list_of_many_pages_that_expires_in_the_middle(self):
        """No decision is based on half of a new list and half of an old one."""
        self.server.page = 2
        job = self.job(replicas=5)
        self.pods_behind_the_scenes(job, range(5))
        c = self.controller()
        self.assertEqual(self.ranks(), {str(1 + i): 2 * i for i in range(5)})
        pages = [r for r in self.server.requests if r[:2] == ("LIST", "pods")]
        self.assertEqual(len(pages), 3)

        def expire():  # after the first page of the next list: its contents are out of date
            self.server.between_pages = None
            c.let_decide(3)  # and it must not decide anything
            for i in range(5):
                self.server.delete("pods", self.ns, f"j-w-{i}")
            self.pods_behind_the_scenes(job, range(5), server=11)
            self.server.oldest = self.server.version

        with self.server.lock:
            # in the new list they are on other servers, of which the first page shows two
            for i in range(3):
                self.server.delete("pods", self.ns, f"j-w-{i}")
            self.pods_behind_the_scenes(job, range(3), server=6)
            self.server.between_pages = expire
            self.server.forget()
        self.wait_ranks({str(11 + i): 2 * i for i in range(5)})
        self.settle(c)
        self.assertIsNone(self.server.between_pages)
        tables = [json.loads(text) for _, text in self.server.patched]
        self.assertEqual(
            [[s["server_id"] for s in t.get("server_list", [])] for t in tables],
            [[f"10.1.0.{n + i}" for i in range(5)] for n in (1, 11)],
        )
        self.assertEqual(c.metric('helios_ranktable_lists_total{kind="pods"}'), 2)

    def test_watches_in_small_pieces_long_lines_and_ends_in_the_middle(self):
        self.server.cut = 4099
        self.server.bulk["pods"] = 1 << 20
        self.server.window_s = 2
        job = self.job()
        self.controller()
        self.pod(job, 0, server=1)
        self.server.cut_watches()
        self.pod(job, 1, server=2)
        self.server.cut_watches()
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})

    def test_refusals_are_waited_out(self):
        self.server.refusals += [
            ["pods", "LIST", 2, kube_api.Refused(429, "TooManyRequests", "slowly", 1)],
            ["configmaps", "LIST", 1, kube_api.Refused(500, "InternalError", "no")],
            ["configmaps", "PATCH", 1, kube_api.Refused(503, "ServiceUnavailable", "no", 1)],
            ["jobs", "LIST", 1000, kube_api.Refused(403, "Forbidden", "jobs is forbidden")],
        ]
        self.server.absent.add("deployments")
        job = self.job()
        c = self.controller()
        self.pods_behind_the_scenes(job, range(2))
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.assertIn("jobs is forbidden", c.text())

    def test_our_own_writes_come_late(self):
        """Our own writes are not taken for another client's."""
        job, c = self.two()
        self.settle(c)
        self.server.late["configmaps"] = 1.5
        for server in (3, 4):
            self.delete("pods", "j-w-0")
            self.wait_status("initializing")
            self.pod(job, 0, server=server)
            self.wait_ranks({str(server): 0, "2": 2})
        self.settle(c, 20)
        self.assertEqual((c.writes(), c.reads()), (5, 0))

    def test_a_config_map_that_may_not_be_read(self):
        _, c = self.two()
        self.settle(c)
        self.server.refusals += [
            ["configmaps", "GET", 3, kube_api.Refused(403, "Forbidden", "configmaps is forbidden")]
        ]
        writes = c.writes()
        self.server.patch(
            "configmaps", self.ns, "rings-config-j", {"data": {"hccl.json": INITIALIZING}}
        )
        wait_for("it is mended", lambda: c.writes() > writes, WAIT_S)
        self.assertEqual(self.ranks(), {"1": 0, "2": 2})
        self.assertIn("configmaps is forbidden", c.text())
        self.assertEqual((c.writes() - writes, c.reads()), (1, 1))

    def test_a_config_map_that_does_not_take_the_table(self):
        """Immutable, or full: its creator is told once, and it is tried again until it works."""
        self.server.refusals += [
            ["configmaps", "PATCH", 4, kube_api.Refused(422, "Invalid", "field is immutable")]
        ]
        _, c = self.two()
        self.settle(c)
        (event,) = self.api.list("events", self.ns)
        self.assertIn("field is immutable", event["message"])
        self.assertEqual(event["involvedObject"]["name"], "j")
        self.assertEqual(c.text().count("field is immutable"), 1)
        self.assertEqual(c.metric('helios_ranktable_jobs{state="completed"}'), 1)

    def test_a_config_map_of_two_jobs_is_not_read_for_our_own_write(self):
        """Our write comes back before its answer, and wakes the job that must not write."""
        first = self.job()
        time.sleep(1.1)  # creation times are whole seconds
        self.job("other", config_map=False, volume="rings-config-j")
        c = self.controller("--no-leader-elect")
        self.server.slow_answers = 1
        self.server.release.clear()
        self.addCleanup(self.server.release.set)
        self.pod(first, 0, server=1)
        self.pod(first, 1, server=2)
        self.wait_status("completed")
        version = int(
            self.api.get("configmaps", self.ns, "rings-config-j")["metadata"]["resourceVersion"]
        )
        wait_for(
            "the watch brought it", lambda: self.server.sent.get("configmaps", 0) >= version, WAIT_S
        )
        c.let_decide(3)  # and it must not read anything
        self.server.release.set()
        self.settle(c)
        self.assertEqual((c.writes(), c.reads()), (1, 0))

    def test_a_watch_that_breaks_and_breaks_again(self):
        """Reported the first time, then less and less often, and when it works again."""
        self.server.refusals += [
            ["pods", "WATCH", 2, kube_api.Refused(500, "InternalError", "no watch today")]
        ]
        _, c = self.two(self.controller("--no-leader-elect"))
        wait_for(
            "it goes on", lambda: "watch of /api/v1/pods continues, failures=2" in c.text(), WAIT_S
        )
        self.assertEqual(c.text().count("no watch today"), 1)
        failures = 'helios_ranktable_watch_failures_total{kind="pods"}'

        def watches():
            return sum(r[:2] == ("WATCH", "pods") for r in self.server.requests)

        for _ in range(4):
            seen, before = watches(), c.metric(failures)
            self.server.cut_watches()
            wait_for("it breaks", lambda n=before: c.metric(failures) > n, WAIT_S)
            wait_for("it is tried again", lambda n=seen: watches() > n, WAIT_S)
        lines = [line for line in c.text().splitlines() if "/api/v1/pods" in line]
        self.assertEqual(["continues" in line for line in lines][:2], [False, True])
        self.assertLessEqual(len(lines), 4)  # and once more when it has failed for ten seconds

    def test_protocol_buffers_that_cannot_be_read(self):
        """The error is reported, and JSON requested: lists alone would do as well,
        but bring no events."""
        self.server.nonsense = b"\0\0\0\7nothing"
        _, c = self.two(self.controller("--no-leader-elect"))
        self.assertEqual(c.text().count("are not an event"), 1)

        def is_told():
            self.api.patch(
                "pods",
                self.ns,
                "j-w-0",
                {"metadata": {"annotations": {"at": str(time.monotonic_ns())}}},
            )
            return c.events("pods") > 0

        wait_for("the watch brings changes", is_told, WAIT_S)

    def test_a_server_that_takes_no_watch_up(self):
        """The server accepts connections and sends nothing:
        that is not a watch that ended normally."""
        _, c = self.two(self.controller("--watch-window", "1s"))
        failures = 'helios_ranktable_watch_failures_total{kind="pods"}'
        self.assertEqual(c.metric(failures), 0)
        self.server.silent = True
        self.addCleanup(setattr, self.server, "silent", False)
        wait_for("it is a failure", lambda: c.metric(failures) > 0, 60)
        self.assertIn("has not answered in time", c.text())

    def test_versions_that_are_always_forgotten(self):
        """Lists are not requested without a pause."""

        def lists():
            return sum(r[:2] == ("LIST", "pods") for r in self.server.requests)

        _, c = self.two()
        before = lists()
        self.server.amnesia = True
        self.server.cut_watches()
        c.let_decide(30)  # at least 3 s, and a second between two lists
        self.assertLess(lists() - before, 10)
        wait_for("it goes on listing", lambda: lists() - before > 2, WAIT_S)

    def test_by_a_proxy(self):
        proxy = f"http://127.0.0.1:{self.server.port}"  # takes whole addresses, as proxies do
        self.config = self.server.kubeconfig(
            self.config, **{"server": "http://kubernetes.invalid", "proxy-url": proxy}
        )
        self.two()

    def test_a_stale_list_is_overtaken(self):
        job = self.job()
        self.pods_behind_the_scenes(job, range(2))
        self.server.delete("pods", self.ns, "j-w-1")
        self.server.stale_lists = 1000
        c = self.controller()
        self.settle(c)
        self.server.stale_lists = 0
        self.wait_status("initializing")

    def test_a_thousand_pods_in_one_write(self):
        """Pods come over seconds; the table, which is not usable yet,
        is not written for each of them."""
        job = self.job(replicas=1000)
        c = self.controller()
        for i in range(1000):
            self.pods_behind_the_scenes(job, [i], server=0)
            if i % 100 == 99:
                c.let_decide(3)
        self.ranks()
        self.settle(c)
        self.assertEqual(len(self.server.patched), 1)
        self.assertEqual(self.table()["server_count"], "1000")


class Lint(Scripted, unittest.TestCase):
    """`helios-ranktable lint`; the rules themselves are tested in
    tests/unit/ranktable/test_lint.c."""

    def lint(self, text, *flags):
        done = subprocess.run(
            [str(BUILD / "bin" / "helios-ranktable"), "lint", *flags],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    def test_a_table_that_was_written_is_sound(self):
        self.two()
        text = self.data()["hccl.json"]
        self.assertEqual(
            self.lint(text, "-", "--chip", "a2"), (0, "-: no fault; 2 servers, 4 devices\n")
        )
        self.assertEqual(
            self.lint(text, "-", "--chip=a5"), (1, "-: version is '1.0'; this chip reads 2.0\n")
        )

    def test_a_manifest_of_several_documents(self):
        manifest = ROOT / "deploy" / "k8s" / "example-job.yaml"
        text = (
            manifest.read_text(encoding="utf-8")
            .replace("ascend-910", "ascend-910b")
            .replace("ascend-910b-config", "ascend-910-config")
        )
        code, said = self.lint(text, "-", "--chip", "a2", "--job")
        self.assertEqual(
            (code, said.splitlines()),
            (
                1,
                [
                    "-: Job resnet, tasks[0]: nodeSelector has no accelerator-type: one of"
                    " module-910b-8, module-910b-16, card-910b-2"
                ],
            ),
        )
        text = text.replace(
            "        restartPolicy: OnFailure",
            (
                "        restartPolicy: OnFailure\n"
                "        nodeSelector: {accelerator-type: module-910b-8}"
            ),
        )
        self.assertEqual(self.lint(text, "-", "--chip", "a2", "--job"), (0, "-: no fault\n"))
        items = "kind: List\nitems:\n" + "".join(
            "- " + part.strip().replace("\n", "\n  ") + "\n" for part in text.split("---\n")
        )
        self.assertEqual(self.lint(items, "-", "--chip", "a2", "--job"), (0, "-: no fault\n"))
        # its own line
        self.assertIn("-:4:1: ", self.lint("a: 1\n---\nkind: [\n", "-", "--chip", "a2", "--job")[1])

    def test_what_is_asked_for_wrongly(self):
        for flags, why in (
            (("-",), "--chip a2|a3|a5 is missing"),
            (("--chip", "a2"), "exactly one FILE"),
            (("-", "--chip", "a4"), "'a4' is not one of a2, a3, a5"),
            (("-", "--cihp", "a2"), "did you mean"),
        ):
            code, said = self.lint("{}", *flags)
            self.assertEqual(code, 2, said)
            self.assertIn(why, said)


class Flags(unittest.TestCase):
    def test_the_log_goes_where_the_flags_of_hccl_controller_say(self):
        """Those of the specification's manifests, and of their later versions."""
        with tempfile.TemporaryDirectory() as folder:
            file, named = f"{folder}/hccl-controller.log", f"{folder}/helios-ranktable.log"
            for flags, log in (
                (
                    (
                        "--logtostderr=false",
                        f"--log_dir={folder}",
                        f"--log_file={file}",
                        "--stderrthreshold=1",
                        "-v=5",
                    ),
                    file,
                ),
                (("--logtostderr=false", "--log_dir", folder), named),
                (("-logFile", file), file),
                ((f"--logFile={file}", "-logLevel=-1"), file),
                (("-logtostderr=true", f"--log_dir={folder}"), None),
            ):
                done = subprocess.run(
                    [
                        str(BUILD / "bin" / "helios-ranktable"),
                        *flags,
                        "-kubeconfig",
                        f"{folder}/none",
                    ],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=60,
                )
                said = done.stderr
                if log is not None:
                    self.assertEqual(said, "", flags)
                    said = pathlib.Path(log).read_text(encoding="utf-8")
                    pathlib.Path(log).unlink()
                self.assertIn(f"{folder}/none can't be read", said, flags)
                self.assertEqual(
                    (done.returncode, list(pathlib.Path(folder).iterdir())), (1, []), flags
                )

    def test_a_log_that_can_not_be_opened_is_named(self):
        done = subprocess.run(
            [str(BUILD / "bin" / "helios-ranktable"), "-logFile", "/nonexistent/file.log"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nonexistent/file.log", done.stderr)

    def test_a_log_at_its_size_limit_does_not_end_it(self):
        with tempfile.NamedTemporaryFile() as log:
            log.write(bytes(4096))
            log.flush()
            done = subprocess.run(
                [
                    str(BUILD / "bin" / "helios-ranktable"),
                    "-logFile",
                    log.name,
                    "-kubeconfig",
                    f"{log.name}.none",
                ],
                check=False,
                timeout=60,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
            )
        self.assertEqual(done.returncode, 1)


def load_tests(loader, _tests, _pattern):
    return SideBySide(
        [t for kind in (Faults, Common, Lint, Flags) for t in loader.loadTestsFromTestCase(kind)],
        AT_ONCE,
    )


if __name__ == "__main__":
    unittest.main()
