"""The pool on two real NUMA nodes."""
import subprocess

from harness import test
from support.cluster import BUILD


@test("every page of a shard lies on the node it was wanted near, as move_pages tells")
def pool_pages(note):
    done = subprocess.run([BUILD / "tests/vm/vm_numa_pool", "/dev/shm/numa.pool", "0", "1"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)
    note(done.stdout)
    assert done.returncode == 0, done.returncode
    assert done.stdout.count("misplaced 0") == 12, done.stdout
