"""A Slurm cluster for a test: slurmctld and two slurmd on this machine, each a node with its own
name (slurmd -N)."""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

from support.cluster import wait_for
from support.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "sinfo", "squeue")
CONF = """ClusterName=helios
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock
CredType=cred/munge
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/%n.pid
SlurmdSpoolDir={dir}/spool-%n
StateSaveLocation={dir}/state
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=30
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
NodeName=hn0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} State=UNKNOWN
NodeName=hn1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=hn0,hn1 Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why Slurm can't run here; "" = it can."""
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"{program} is not installed"
    return "" if os.geteuid() == 0 else "slurmd needs root"


class Slurm:
    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-slurm-"))
        os.chmod(self.dir, 0o755)  # munge checks who can write to the folders above its socket
        self.daemons = []
        self.env = {**os.environ, "SLURM_CONF": str(self.dir / "slurm.conf")}
        (self.dir / "state").mkdir()
        (self.dir / "munge.key").write_bytes(os.urandom(1024))
        os.chmod(self.dir / "munge.key", 0o400)
        text = CONF.format(
            host=socket.gethostname().split(".")[0],
            dir=self.dir,
            cpus=os.cpu_count(),
            ports=[free_port() for _ in range(3)],
        )
        (self.dir / "slurm.conf").write_text(text)

    def __enter__(self):
        try:
            self.start(
                "munged",
                "--force",
                "--foreground",
                f"--key-file={self.dir}/munge.key",
                f"--socket={self.dir}/munge.sock",
                f"--pid-file={self.dir}/munged.pid",
                f"--log-file={self.dir}/munged.log",
                f"--seed-file={self.dir}/seed",
            )
            wait_for("munged", (self.dir / "munge.sock").exists)
            self.start("slurmctld", "-D", "-c")
            for node in ("hn0", "hn1"):
                self.start("slurmd", "-D", "-N", node)
            wait_for(
                "two idle nodes",
                lambda: self.run("sinfo", "--noheader", "--format=%T %D") == "idle 2",
            )
        except BaseException:
            for log in self.dir.glob("*.log"):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(20)
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, *command):
        with open(self.dir / "daemons.log", "ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    command,
                    env=self.env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def run(self, *args):
        return subprocess.run(
            args, env=self.env, capture_output=True, text=True, timeout=60, check=False
        ).stdout.strip()

    def srun(self, *args, env=None, log=None):
        """In the background."""
        return subprocess.Popen(
            ["srun", *map(str, args)],
            env={**(env or {}), **{k: v for k, v in self.env.items() if k == "SLURM_CONF"}},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
