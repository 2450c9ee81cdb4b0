"""One soft-RoCE device, rxe0, on a veth pair: 10.2.0.1."""
import contextlib
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
    # A veth pair, so that UCX sees 10 Gb/s; an MTU of 4200 carries RoCE's packets of 4096.
    sh(
        f"""ip link add v0 type veth peer name v1
           ip link set v0 mtu 4200; ip link set v1 mtu 4200
           ip addr add {ADDRESS}/24 dev v0; ip link set v0 up; ip link set v1 up
           rdma link add rxe0 type rxe netdev v0"""
    )


@contextlib.contextmanager
def deaf():
    """A host at the other end of a cable, both with an RDMA device: TCP works and RDMA does not,
    because soft-RoCE in Linux 6.1 receives nothing in network namespaces. Returns the other host's
    (namespace, address)."""
    sh(
        """ip netns add other
          ip link add w0 type veth peer name w1 netns other
          ip addr add 10.3.0.1/24 dev w0; ip link set w0 up
          ip -n other addr add 10.3.0.2/24 dev w1; ip -n other link set w1 up; \
ip -n other link set lo up
          rdma link add rxe2 type rxe netdev w0
          ip netns exec other rdma link add rxe3 type rxe netdev w1"""
    )
    try:
        yield "other", "10.3.0.2"
    finally:
        sh("rdma link delete rxe2; rdma link delete rxe3; ip link del w0; ip netns del other")


def packets():
    """(sent, received) by rxe0 since it was made."""
    return tuple(int((COUNTERS / name).read_text()) for name in ("sent_pkts", "rcvd_pkts"))
