#!/usr/bin/python3
"""Two processes train on a node that asks for memory at random: both learn plain torch's bits."""
from __future__ import annotations

import os
import pathlib
import random
import select
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()

from hybridps_model import BUILD, CHUNK, adam, hybridps, make, model_bytes, train  # noqa: E402

STEPS = 12
WAYS = [
    (where, mode, policy)
    for where in ("host", "device")
    for mode, policy in (("copy", "opt"), ("move", "opt"), ("copy", "lru"))
]


class Node:
    """A node's table with one device, and what its Agent asks."""

    def __init__(self, name):
        self.table = hybridps.Manager(name, 1 << 40, [1 << 40])
        self.agent = subprocess.Popen(
            [BUILD / "tests" / "hybridps_ask", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, device, size):
        """Returns the bytes that all processes use there."""
        print(device, size, file=self.agent.stdin, flush=True)
        return int(self.agent.stdout.readline())

    def close(self):
        self.agent.stdin.close()
        self.agent.wait(60)
        self.agent.stdout.close()
        self.table.close()


def learn(moment=None, table="none", way=WAYS[0]):
    """The losses and the final values; managed if a moment's function is given."""
    torch.set_num_threads(1)
    model = make()
    optimizer = adam(model)
    if moment is None:
        return train(model, optimizer, STEPS), model.state_dict(), {}
    where, mode, policy = way
    with hybridps.manage(
        model,
        optimizer,
        device=f"emu:{model_bytes(model) * 4}",
        chunk_bytes=CHUNK,
        mode=mode,
        policy=policy,
        optimizer_device=where,
        manager=table,
        spill="none",
        reserved_bytes=moment,
    ) as client:
        losses = train(model, optimizer, STEPS)
        return losses, {k: v.clone() for k, v in model.state_dict().items()}, client.stats()


def difference(one, other):
    """What differs in two results of learn(); "" if nothing does."""
    if one[0] != other[0]:
        return f"losses {one[0]} and {other[0]}"
    return ", ".join(k for k in one[1] if not torch.equal(one[1][k], other[1][k]))


def other(table):
    """The second process: trains until stdin ends; says what differs."""
    plain = learn()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        found = difference(learn(lambda: 0, table, ("device", "copy", "opt")), plain)
        if found:
            print(found, flush=True)
            return
    print("equal", flush=True)


class Asked(unittest.TestCase):
    def setUp(self):
        self.name = f"helios-test-asked-{os.getpid()}"
        self.node = Node(self.name)
        self.addCleanup(self.node.close)
        self.peer = subprocess.Popen(
            [sys.executable, __file__, "--other", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(self.peer.wait, 200)
        self.addCleanup(self.peer.stdout.close)
        self.addCleanup(self.peer.stdin.close)
        self.assertEqual(self.peer.stdout.readline(), "ready\n")

    def test_values_are_those_of_plain_torch(self):
        plain = learn()
        whole = model_bytes(make()) * 4
        for seed, way in enumerate(WAYS):
            pick = random.Random(seed)

            def moment():
                if pick.random() < 0.1:
                    device = pick.choice((-1, 0))
                    self.node.ask(device, pick.choice((0, 1, pick.randrange(1, 2 * whole))))
                return 0

            with self.subTest(way):
                result = learn(moment, self.name, way)
                self.assertEqual(difference(result, plain), "")
                self.assertGreater(result[2]["given_back_bytes"], 0)
        for device in (-1, 0):
            self.node.ask(device, 0)
        self.peer.stdin.close()
        self.assertEqual(self.peer.stdout.readline(), "equal\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--other"]:
        other(sys.argv[2])
    else:
        unittest.main()
