"""The environment of a job's ranks: variables of the job file and of the submitter,
a Python of the user's choice."""
import json
import pathlib
import shlex
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import HELIOS, cluster  # noqa: E402


class JobEnvironment(unittest.TestCase):
    def submit(self, c, text, *args, **env):
        """Submits as from a shell with these variables, in the cluster's directory;
        returns the job's id."""
        (c.dir / "job.yaml").write_text(text)
        done = subprocess.run(
            [HELIOS, "--state", c.state, "submit", "job.yaml", *args],
            cwd=c.dir,
            env={**c.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def seen(self, c, job):
        """The environment that its rank saw; the job prints it with env -0."""
        c.wait_job(job, "succeeded")
        return dict(line.split("=", 1) for line in c.log(job).split("\0") if "=" in line)

    def test_variables_of_the_submitter_reach_the_ranks_when_they_are_exported(self):
        shell = {
            "TOKEN": "s3cret",
            "LR": "1",
            "TMUX": "x",
            "HELIOS_READ_RETRIES": "7",
            "RANK": "9",
            "PATH": "/my/own:/usr/bin:/bin",
        }
        text = "jobName: e\ncommand: [/usr/bin/env, '-0']\nenv: {LR: '2', HOME_DIR: $HOME/x}\n"
        with cluster(nodes=1, slots=2) as c:
            plain = self.seen(c, self.submit(c, text, **shell))
            self.assertNotIn("TOKEN", plain)
            self.assertEqual((plain["LR"], plain["HOME_DIR"]), ("2", "$HOME/x"))  # literally
            self.assertNotEqual(plain["PATH"], shell["PATH"])  # the daemon's

            named = self.seen(
                c, self.submit(c, text, "--export", "TOKEN,LR=3,LIST='a,b',TMUX", **shell)
            )
            # before the file's
            self.assertEqual(
                [named[k] for k in ("TOKEN", "LR", "LIST", "TMUX")], ["s3cret", "3", "a,b", "x"]
            )
            self.assertNotEqual(named["PATH"], shell["PATH"])

            job = self.submit(c, text, "--export", "ALL,MORE=1", **shell)
            every = self.seen(c, job)
            self.assertEqual(
                [every[k] for k in ("TOKEN", "LR", "PATH", "MORE", "RANK")],
                ["s3cret", "2", shell["PATH"], "1", "0"],
            )
            self.assertNotIn("TMUX", every)
            self.assertNotEqual(every.get("HELIOS_READ_RETRIES"), "7")

            launch = c.job(job)["launch"]
            self.assertEqual(launch["variables"], ["LR", "HOME_DIR"])
            self.assertLessEqual({"TOKEN", "PATH", "MORE"}, set(launch["exported"]))
            self.assertEqual(
                (launch["file"], launch["workdir"]), (str(c.dir / "job.yaml"), str(c.dir))
            )
            shown = c.run("describe", job).stdout
            for word in ("/usr/bin/env -0", "TOKEN", str(c.dir / "job.yaml")):
                self.assertIn(word, shown)
            self.assertNotIn("s3cret", shown + json.dumps(c.job(job)))

            for value, expected in (
                ("RANK", "'RANK'"),
                ("HELIOS_X=1", "'HELIOS_X'.*env"),
                ("NOT_SET_AT_ALL", "NOT_SET_AT_ALL"),
                ("1X=2", "'1X'"),
                ("X='a", "quote of X"),
            ):
                for command in ("plan", "submit"):
                    self.assertRegex(
                        c.refuse(command, c.dir / "job.yaml", "--export", value), expected
                    )

    def test_a_virtual_environment_and_an_interpreter_are_the_ranks_python(self):
        with cluster(nodes=1, slots=1) as c:
            subprocess.run(
                ["/usr/bin/python3", "-m", "venv", "--without-pip", c.dir / "own"],
                check=True,
                timeout=60,
            )
            show = "command: [python, -c, 'import sys; print(sys.prefix)']\n"
            for key, value in (("venv", "own"), ("python", "own/bin/python")):
                # relative to where it is submitted
                job = self.submit(c, f"jobName: p\n{show}{key}: {value}\n")
                c.wait_job(job, "succeeded")
                self.assertEqual(c.log(job), f"{c.dir}/own\n")
                self.assertIn(f"{c.dir}/{value}", c.run("describe", job).stdout)
            plan = c.run("plan", c.dir / "job.yaml").stdout
            self.assertIn("own/bin/python", plan)
            (c.dir / "job.yaml").write_text("jobName: q\ncommand: [echo, it's, a b, '', \"'\"]\n")
            shown = next(
                line
                for line in c.run("plan", c.dir / "job.yaml").stdout.splitlines()
                if line.startswith("command")
            )
            self.assertEqual(shlex.split(shown), ["command", "echo", "it's", "a b", "", "'"])
            job = self.submit(c, f"jobName: gone\n{show}venv: gone\n")
            self.assertRegex(c.wait_job(job, "failed")["reason"], f"node-0.*venv.*{c.dir}/gone")
            path = c.dir / "job.yaml"
            for text, expected in (
                ("venv: a\npython: b\n", "job.yaml:4:1: venv, conda and python"),
                ("venv: ~/x\n", "job.yaml:3:7: venv: ~"),
            ):
                path.write_text("jobName: x\ncommand: 'true'\n" + text)
                self.assertRegex(c.refuse("plan", path), expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
