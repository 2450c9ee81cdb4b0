#!/usr/bin/python3
"""./run bench idle: what idle connections cost the others.

Starts a cluster and opens many connections to every port of its daemons (RPC, data protocol,
ZeroMQ, pools' sockets, HTTP). In one kind of round they send nothing at all, in the other they are
admitted first. Another client calls each port without and with them. A daemon may close silent
connections: `open` is how many it had kept at the end. Exits with 1 if a p99 with them is more than
twice the p99 without them (the bar)."""
import argparse
import pathlib
import resource
import select
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]
sys.dont_write_bytecode = True

from support import wire  # noqa: E402
from support.cluster import cluster, leave_by_signals  # noqa: E402

BAR = 2.0
SPARE_FILES = 200


class Idle:
    """Idle connections to one port."""

    def __init__(self, port, count, greeted):
        self.sockets, self.refused = [], 0
        for _ in range(count):
            try:
                self.sockets.append(let_in(port) if greeted else port.connect())
            except (OSError, AssertionError):  # the daemon has as many as it takes
                self.refused += 1

    def open(self):
        """How many the daemon has not closed."""
        poller = select.poll()
        for s in self.sockets:
            poller.register(s, select.POLLIN | select.POLLRDHUP)
        return len(self.sockets) - sum(
            1 for _, events in poller.poll(0) if events & (select.POLLHUP | select.POLLRDHUP)
        )

    def close(self):
        for s in self.sockets:
            s.close()


def let_in(port):
    """A connection that has been admitted and has made a call: otherwise it is closed as silent."""
    caller = wire.Caller(port)
    try:
        caller.call()
    except BaseException:
        caller.close()
        raise
    return caller.socket


def processor_seconds(pid):
    """CPU time of all threads of a daemon. Unlike a latency, it does not depend on other load."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
        except OSError:  # it has ended meanwhile
            continue
    return total / 1e9


def quantile(samples, q):
    return sorted(samples)[min(len(samples) - 1, int(q * len(samples)))]


def measure(port, calls):
    with wire.caller(port) as caller:
        wire.latencies(caller, calls // 10)
        before = processor_seconds(port.pid)
        taken = wire.latencies(caller, calls)
        return taken, (processor_seconds(port.pid) - before) / calls


def one(ports, args, greeted, found):
    """A round: every port without idle connections, then with them on all ports."""
    quiet = {p.name: measure(p, args.calls) for p in ports}
    # HTTP admits no one: a request is answered, and its connection ends.
    idle = {
        p.name: Idle(p, args.connections, greeted)
        for p in ports
        if not (greeted and p.kind == "http")
    }
    try:
        for p in ports:
            row = found.setdefault(
                p.name, {"quiet": [], "with": [], "cpu": [], "open": [], "error": ""}
            )
            row["quiet"] += quiet[p.name][0]
            try:
                taken, cpu = measure(p, args.calls)
                row["with"] += taken
                row["cpu"].append(cpu / quiet[p.name][1])
            except (OSError, AssertionError) as error:
                row["error"] = str(error) or type(error).__name__
            row["open"].append(idle[p.name].open() if p.name in idle else 0)
    finally:
        for i in idle.values():
            i.close()


def report(found, what):
    print(
        f"\n{what}\n{'port':20}{'open':>6}{'p50':>9}{'with':>9}{'ratio':>7}"
        f"{'p99':>9}{'with':>9}{'ratio':>7}{'cpu':>6} "
        "  us; cpu: of the daemon per call, ratio"
    )
    missed = 0
    for name, row in found.items():
        if row["error"]:
            print(f"{name:20}{min(row['open']):6}  not served: {row['error']}")
            missed += 1
            continue
        values = [1e6 * quantile(row[k], q) for q in (0.5, 0.99) for k in ("quiet", "with")]
        ratios = values[1] / values[0], values[3] / values[2]
        missed += ratios[1] > BAR
        print(
            (
                f"{name:20}{min(row['open']):6}{values[0]:9.0f}{values[1]:9.0f}{ratios[0]:7.2f}"
                f"{values[2]:9.0f}{values[3]:9.0f}{ratios[1]:7.2f}"
                f"{statistics.median(row['cpu']):6.2f} "
                f"  {'missed' if ratios[1] > BAR else 'met'}"
            ),
            flush=True,
        )
    return missed


def main():
    parser = argparse.ArgumentParser(prog="./run bench idle", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--connections", type=int, default=1000, help="to each port (1000)")
    parser.add_argument(
        "--calls", type=int, default=1000, help="calls of each port in each round (1000)"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds whose samples are combined (3)"
    )
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    missed = 0
    leave_by_signals()
    with cluster(
        nodes=1,
        tcp=True,
        secret="none",
        up=("--l2-size", "32MiB"),
        env={"HELIOS_METRICS_LISTEN": "127.0.0.1:0"},
    ) as c:
        ports = wire.ports(c.state)
        if most < args.connections * len(ports) + SPARE_FILES:
            sys.exit(
                f"idle: {len(ports)} ports need"
                f" {args.connections * len(ports) + SPARE_FILES} descriptors, this process may have"
                f" {most}; raise ulimit -n or give --connections less"
            )
        for greeted, what in (
            (False, "connections that say nothing"),
            (True, "connections that were let in"),
        ):
            found = {}
            for _ in range(args.rounds):
                one(ports, args, greeted, found)
            missed += report(
                found, f"{args.connections} {what}, each port; {args.rounds} x {args.calls} calls"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
