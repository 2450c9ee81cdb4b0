#!/usr/bin/python3
"""What users write around a managed model does the same as on plain torch, bit for bit, or
is refused by name: each row of the table in docs/hybridps.md, at three capacities.
`--write` renews that table."""
from __future__ import annotations

import os
import pathlib
import re
import sys
import traceback
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
import hybridps  # noqa: E402
import hybridps_constructs_graphs  # noqa: E402, F401
import hybridps_constructs_optimizers  # noqa: E402, F401
import hybridps_constructs_types  # noqa: E402, F401
import hybridps_constructs_uses  # noqa: E402, F401
import hybridps_constructs_limits  # noqa: E402, F401; in the order of the table
from hybridps_constructs import ABSENT, CAPACITIES, EQUAL, ROWS, World, table  # noqa: E402
from hybridps_programs import bits  # noqa: E402

PAGE = needs.ROOT / "docs" / "hybridps.md"
PLACE = re.compile(
    r"(?s)(<!-- constructs: by tests/e2e/test_hybridps_constructs.py -->\n).*?(<!-- end -->)"
)


def run(use, make, device):
    """What it returned, and the parameters; or the error."""
    world = World(make, device)
    try:
        world.manage()
        try:
            out = use(world)
        finally:
            world.close()
    except hybridps.HybridPSError as error:
        return str(error)
    out = out() if callable(out) else out
    return bits(out), bits(list(world.model.parameters()))


def outcome_of(use, make, device):
    """EQUAL, the error's text, or the difference."""
    said = run(use, make, device)
    if isinstance(said, str):
        return said
    return EQUAL if said == run(use, make, None) else "other values than plain torch's"


def in_child(use, make, device):
    """In a child, so that a signal fails one row instead of all; and because torch 2 has no
    backward after a fork once autograd's threads run."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, outcome_of(use, make, device).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(2)
    os.close(write)
    with os.fdopen(read) as file:
        said = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said if code == 0 else f"the child ended with {code}"


class Constructs(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def test_each_row_is_equal_or_refused_at_three_capacities(self):
        for text, outcome, use, make in ROWS:
            if text in ABSENT:
                print(f"not with torch {torch.__version__}: {text}", file=sys.stderr)
                continue
            for device in CAPACITIES:
                with self.subTest(text, device=device):
                    said = in_child(use, make, device)
                    if outcome == EQUAL:
                        self.assertEqual(said, EQUAL)
                    else:
                        self.assertRegex(said, re.escape(outcome))

    def test_the_page_has_the_table(self):
        self.assertEqual(
            PLACE.search(PAGE.read_text())[0],
            PLACE.sub(lambda m: m[1] + table() + m[2], PLACE.search(PAGE.read_text())[0]),
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(PLACE.sub(lambda m: m[1] + table() + m[2], PAGE.read_text()))
        sys.exit(0)
    unittest.main()
