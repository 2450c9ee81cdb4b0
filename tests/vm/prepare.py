"""One soft-RoCE device, rxe0, on a veth pair: 10.2.0.1."""
import pathlib
import subprocess

ADDRESS = "10.2.0.1"
COUNTERS = pathlib.Path("/sys/class/infiniband/rxe0/ports/1/hw_counters")


def sh(command):
    done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr.strip()}")
    return done.stdout


def rxe():
    if COUNTERS.exists():
        return
    sh("modprobe -a crc32_generic ib_uverbs rdma_rxe rdma_ucm")
    # Two ends, so that UCX sees 10 Gb/s; 4200 bytes carry RoCE's packets of 4096.
    sh(f"""ip link add v0 type veth peer name v1
           ip link set v0 mtu 4200; ip link set v1 mtu 4200
           ip addr add {ADDRESS}/24 dev v0; ip link set v0 up; ip link set v1 up
           rdma link add rxe0 type rxe netdev v0""")


def packets():
    """(sent, received) by rxe0 since it was made."""
    return tuple(int((COUNTERS / name).read_text()) for name in ("sent_pkts", "rcvd_pkts"))
