"""`helios mem replay` against an independent reference: traces of training, each policy,
both modes."""
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import HELIOS  # noqa: E402

MIB = 1 << 20


def training(layers, room, adam, iterations=3):
    """Forward, backward, optimizer of `layers` chunks;
    the tide takes up to half of `room` chunks."""
    size = 64 * MIB
    chunks = [{"id": f"p{i}", "kind": "param", "bytes": size, "init": "cpu"} for i in range(layers)]
    chunks += [{"id": f"m{i}", "kind": "p32", "bytes": size, "init": "cpu"} for i in range(layers)]
    chunks += [
        {"id": f"g{i}", "kind": "grad", "bytes": size, "init": "none"} for i in range(layers)
    ]
    moments = []

    def add(stage, i, tide, need, free=()):
        avail = (room - tide) * size + 4097
        moments.append(
            {"stage": stage, "op": f"l{i}", "avail": avail, "need": need, "free": list(free)}
        )

    def tide(i):
        return room * i // (2 * layers)

    for i in range(layers):
        add("FWD", i, tide(i), [[f"p{i}", "gpu", "r"]])
    for i in reversed(range(layers)):
        add("BWD", i, tide(i), [[f"p{i}", "gpu", "r"], [f"g{i}", "gpu", "w"]])
    for i in range(layers):
        add(
            "ADAM",
            i,
            0,
            [[f"p{i}", adam, "w"], [f"m{i}", adam, "w"], [f"g{i}", adam, "r"]],
            [f"g{i}"],
        )
    return {"chunks": chunks, "iteration": moments, "iterations": iterations}


def reference(trace, policy, mode):
    """Bytes per iteration, computed from the format's description alone."""
    copy, moments = mode == "copy", trace["iteration"]
    size = {c["id"]: c["bytes"] for c in trace["chunks"]}
    order = {c["id"]: i for i, c in enumerate(trace["chunks"])}
    host = {c["id"] for c in trace["chunks"] if c["init"] == "cpu"}
    device, loaded, used, clock, result = set(), {}, {}, 0, []

    def next_use(chunk, now):
        for step in range(1, len(moments) + 1):
            if any(
                n[0] == chunk and n[1] == "gpu"
                for n in moments[(now + step) % len(moments)]["need"]
            ):
                return step
        return len(moments) + 1

    for _ in range(trace["iterations"]):
        h2d = d2h = 0
        for now, moment in enumerate(moments):
            wanted = [n for n in moment["need"] if n[1] == "gpu"]
            for chunk, place, how in moment["need"]:
                if place == "cpu":
                    if chunk in device and chunk not in host:
                        d2h += size[chunk]
                    host.add(chunk)
                    if not copy or how == "w":
                        device.discard(chunk)
            pinned = {n[0] for n in wanted}
            while sum(size[c] for c in device | pinned) > moment["avail"]:
                rank = {
                    "fifo": lambda c: -loaded[c],
                    "lru": lambda c: -used[c],
                    "belady": lambda c: next_use(c, now),
                }
                victim = max(device - pinned, key=lambda c: (rank[policy](c), -order[c]))
                if victim not in host:
                    d2h += size[victim]
                    host.add(victim)
                device.discard(victim)
            for chunk, _, how in wanted:
                clock += 1
                if chunk not in device:
                    h2d += size[chunk] if chunk in host else 0
                    device.add(chunk)
                    loaded[chunk] = clock
                    if not copy:
                        host.discard(chunk)
                if how == "w":
                    host.discard(chunk)
                used[chunk] = clock
            for chunk in moment.get("free", []):
                device.discard(chunk)
                host.discard(chunk)
        result.append({"h2d": h2d, "d2h": d2h})
    return result


def anything(pick):
    """A small trace that fits: chunks of several sizes, uses on both sides, contents that end."""
    unit = pick.choice([1, 4096, 1000003])
    chunks = [
        {
            "id": pick.choice([f"c{i}", i]),
            "kind": pick.choice(["param", "grad", "mine"]),
            "bytes": unit * pick.randint(1, 3),
            "init": pick.choice(["cpu", "cpu", "none"]),
        }
        for i in range(pick.randint(2, 5))
    ]
    moments = []
    for _ in range(pick.randint(2, 7)):
        need = [
            [c["id"], pick.choice(["gpu", "gpu", "cpu"]), pick.choice("rrw")]
            for c in pick.sample(chunks, pick.randint(1, 2))
        ]
        pinned = sum(c["bytes"] for c in chunks for n in need if n[:2] == [c["id"], "gpu"])
        moments.append(
            {
                "stage": "S",
                "op": str(len(moments)),
                "avail": pinned + pick.randint(0, 5 * unit),
                "need": need,
                "free": [c["id"] for c in chunks if pick.random() < 0.08],
            }
        )
    return {"chunks": chunks, "iteration": moments, "iterations": pick.randint(1, 3)}


def least_bytes(trace, mode):
    """The best of all ways to evict. A state is (on the device, on the host) for every chunk."""
    ids, size = [c["id"] for c in trace["chunks"]], [c["bytes"] for c in trace["chunks"]]
    costs = {tuple((0, int(c["init"] == "cpu")) for c in trace["chunks"]): 0}
    for moment in trace["iteration"] * trace["iterations"]:
        need = [(ids.index(chunk), place, how == "w") for chunk, place, how in moment["need"]]
        wanted = {i for i, place, _ in need if place == "gpu"}
        after = {}
        for state, cost in costs.items():
            may_leave = [i for i, (device, _) in enumerate(state) if device and i not in wanted]
            for gone in itertools.chain.from_iterable(
                itertools.combinations(may_leave, k) for k in range(len(may_leave) + 1)
            ):
                now, total = list(state), cost + sum(size[i] for i in gone if not state[i][1])
                for i in gone:
                    now[i] = (0, 1)
                for i, place, write in need:
                    device, host = now[i]
                    keep = mode == "copy" and not write
                    if place == "gpu":
                        total += size[i] if host and not device else 0
                        now[i] = (1, int(host and keep))
                    else:
                        total += size[i] if device and not host else 0
                        now[i] = (int(device and keep), 1)
                if sum(s for s, (device, _) in zip(size, now) if device) > moment["avail"]:
                    continue
                for chunk in moment["free"]:
                    now[ids.index(chunk)] = (0, 0)
                after[tuple(now)] = min(total, after.get(tuple(now), total))
        costs = after
    return min(costs.values())


def spoil(pick, value):
    """Changes one thing in it."""
    places = []

    def walk(node):
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(value)
    node, key = pick.choice(places)
    node[key] = pick.choice(
        [None, -1, 0, 1e308, 2**63, 2**64 - 1, "", "\0x", "a" * 5000, [], {}, [[]], True, 1.5]
    )
    text = json.dumps(value)
    at = pick.randrange(len(text))
    return (
        text
        if pick.random() < 0.8
        else text[:at] + pick.choice(["", "}", "\0", "[" * 800, "1e999"]) + text[at:]
    )


class MemReplay(unittest.TestCase):
    def replay(self, trace, *args):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(trace if isinstance(trace, str) else json.dumps(trace))
            file.flush()
            return subprocess.run(
                [str(HELIOS), "mem", "replay", file.name, "--scale", "4096", *args],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

    def result(self, trace, policy, mode):
        done = self.replay(trace, "--policy", policy, "--mode", mode, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(set(result), {"mode", "policy", "per_iter", "peak_over_avail"})
        self.assertEqual(
            (result["mode"], result["policy"], result["peak_over_avail"]), (mode, policy, 0)
        )
        return result["per_iter"]

    def test_each_policy_moves_what_the_reference_says_and_opt_no_more_than_belady(self):
        for adam in ("cpu", "gpu"):
            for room in (4, 7, 13):
                trace = training(10, room, adam)
                for mode in ("move", "copy"):
                    with self.subTest(adam=adam, room=room, mode=mode):
                        for policy in ("fifo", "lru"):
                            self.assertEqual(
                                self.result(trace, policy, mode), reference(trace, policy, mode)
                            )
                        ours = sum(i["h2d"] + i["d2h"] for i in self.result(trace, "opt", mode))
                        belady = sum(i["h2d"] + i["d2h"] for i in reference(trace, "belady", mode))
                        self.assertLessEqual(ours, belady)

    def test_no_policy_moves_less_than_the_least_there_is_and_opt_little_more(self):
        pick = random.Random(20)
        ours = best = 0
        for number in range(25):
            trace = anything(pick)
            for mode in ("move", "copy"):
                least = least_bytes(trace, mode)
                for policy in ("opt", ("lru", "fifo", "heat", "random")[number % 4]):
                    moved = sum(i["h2d"] + i["d2h"] for i in self.result(trace, policy, mode))
                    self.assertGreaterEqual(moved, least, json.dumps(trace))
                    if policy == "opt":
                        ours, best = ours + moved, best + least
        self.assertLessEqual(ours, 1.03 * best)

    def test_a_spoilt_trace_is_replayed_or_refused(self):
        pick = random.Random(21)
        refused = 0
        for _ in range(60):
            text = spoil(pick, anything(pick))
            done = self.replay(text, "--policy", pick.choice(["opt", "lru"]), "-o", "json")
            self.assertIn(done.returncode, (0, 1), text)
            self.assertEqual(bool(done.stderr), done.returncode == 1, text)
            refused += done.returncode
        self.assertGreater(refused, 20)

    def test_a_bad_trace_is_refused_with_its_place(self):
        trace = training(3, 1, "gpu")
        done = self.replay(trace, "--mode", "move")
        self.assertEqual(done.returncode, 1)
        self.assertIn("moment 3 (BWD l2)", done.stderr)
        self.assertIn(str(2 * 64 * MIB), done.stderr)
        done = self.replay('{"chunks": [}')
        self.assertEqual(done.returncode, 1)
        self.assertIn("line 1 column", done.stderr)
        trace["iteration"][1]["need"] = [["nobody", "gpu", "r"]]
        done = self.replay(trace)
        self.assertIn('iteration[1].need[0]: unknown chunk "nobody"', done.stderr)


if __name__ == "__main__":
    unittest.main()
