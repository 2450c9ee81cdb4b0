"""A helios-l3d by itself, on the RDMA device.
There is no Controller, so no sweep removes shards without a version."""
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile

from prepare import ADDRESS
from support.cluster import BUILD, cluster, wait_for

# On a busy host an emulated program can stand for many seconds. The defaults would take that for a
# network that lets nothing through, or for a node that is lost together with its copies. Emulated
# memory is slower than that of any usable node.
PATIENT = {
    "HELIOS_DATA_CONNECT_TIMEOUT": "180s",
    "HELIOS_DATA_PUT_TIMEOUT": "180s",
    "HELIOS_DATA_STALL": "60s",
    "HELIOS_NODE_LOST": "300s",
    "HELIOS_RPC_TIMEOUT": "120s",
    "HELIOS_COPY_LOCATE_TIMEOUT": "120s",
    "HELIOS_COPY_TIMEOUT": "300s",
    "HELIOS_AGENT_HEALTH": "false",
}
NETWORK = {"HELIOS_PLANE_BACKBONE": ADDRESS, **PATIENT}


def slow_cluster(**kwargs):
    """A cluster of one node, in this machine."""
    return cluster(nodes=1, size="64MiB", up=("--timeout", "300s"), patience=6, **kwargs)


class Daemon:
    def __init__(self, process, ready):
        self.process, self.pid = process, process.pid
        self.address, self.data, self.pool = ready["address"], ready["dataAddress"], ready["pool"]

    def told(self):
        """Its answer to poolInfo."""
        done = subprocess.run(
            [BUILD / "tests/net_peer", "rpc", self.address, "L3"],
            input="poolInfo\n",
            text=True,
            stdout=subprocess.PIPE,
            timeout=240,
            check=True,
        )
        return json.loads(done.stdout)["pool"]

    def used(self):
        """(bytes used, shards), once the quarantine is empty."""
        told = wait_for(
            "the quarantine to be empty",
            lambda: (p := self.told())["quarantinedBytes"] == 0 and p,
            240,
        )
        return told["usedBytes"], told["shards"]


@contextlib.contextmanager
def daemon(size, wrap=()):
    with tempfile.TemporaryDirectory() as home, open(f"{home}/log", "w+", encoding="utf-8") as log:
        ready = pathlib.Path(home, "ready.json")
        pool = pathlib.Path("/dev/shm/vm-l3d.pool")
        process = subprocess.Popen(
            [
                *wrap,
                BUILD / "bin/helios-l3d",
                "--pool",
                pool,
                "--size",
                size,
                "--socket",
                f"{home}/l3.sock",
                "--listen",
                "127.0.0.1:0",
                "--data-listen",
                ":0",
                "--quarantine",
                "100ms",
                "--ready-file",
                ready,
            ],
            env=dict(os.environ, **NETWORK),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(
                "helios-l3d to serve", lambda: ready.exists() or process.poll() is not None, 600
            )
            yield Daemon(process, json.loads(ready.read_text()))
            assert process.poll() is None, f"helios-l3d ended with {process.returncode}"
        except BaseException:
            log.seek(0)
            print(log.read()[-3000:])
            raise
        finally:
            process.kill()
            process.wait()
            pool.unlink(missing_ok=True)
