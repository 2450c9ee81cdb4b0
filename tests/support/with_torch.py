#!/usr/bin/python3
"""with_torch.py SCRIPT|-c CODE [ARGS]: run it in a fork of a process that has imported torch,
because each import costs more than a second of CPU time. The first script of a CTest run starts
that process; it ends with CTest. A script is killed with its caller. If the process can't be
started, the script runs in a process of its own. A script can run others the same way."""
from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import sys

NAME = "helios-torch-{}-{}"  # in the abstract name space: gone when its listener ends
TOLD = "TESTS_TORCH"  # the name, for scripts of scripts
PEER = struct.Struct("3i")
STATUS = struct.Struct("i")


# ---- the process with torch ----


class Server:
    def __init__(self, listener: socket.socket, parent: int) -> None:
        import select

        self.listener, self.parent = listener, parent
        self.poll = select.poll()
        self.poll.register(listener, select.POLLIN)
        self.poll.register(parent, select.POLLIN)
        self.callers: dict[
            int, tuple[socket.socket, int]
        ] = {}  # by descriptor, with the child's pid
        self.children: dict[int, int] = {}  # a child's descriptor to its caller's

    def run(self) -> None:
        while True:
            ready = [fd for fd, _ in self.poll.poll()]
            if self.parent in ready:
                for _, pid in self.callers.values():
                    end(pid)
                return
            for fd in ready:
                if fd in self.callers:  # it has closed: it was killed
                    self.poll.unregister(fd)
                    end(self.callers[fd][1])
                elif fd in self.children:
                    self.tell(fd)  # its caller, which may be ready as well, is closed
            if (
                self.listener.fileno() in ready
            ):  # last: it reuses descriptors that were closed above
                self.begin(self.listener.accept()[0])

    def begin(self, caller: socket.socket) -> None:
        _, user, _ = PEER.unpack(
            caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
        )
        caller.settimeout(10)
        try:
            wanted, fds = receive(caller) if user == os.getuid() else (None, [])
        except (OSError, ValueError):
            wanted, fds = None, []
        if wanted is None or len(fds) != 3:
            caller.close()
            return
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for fd in (self.parent, *self.children):
                    os.close(fd)
                for other in (self.listener, caller, *(s for s, _ in self.callers.values())):
                    other.close()
                for target, fd in enumerate(fds):
                    os.dup2(fd, target)
                    os.close(fd)
                run_here(wanted)
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        try:
            caller.send(b"+")
        except OSError:  # it was killed, which shows again below
            pass
        child = os.pidfd_open(pid)
        self.callers[caller.fileno()], self.children[child] = (caller, pid), caller.fileno()
        self.poll.register(caller, 0)  # only its end
        self.poll.register(child)

    def tell(self, child: int) -> None:
        caller, pid = self.callers.pop(self.children.pop(child))
        self.poll.unregister(child)
        os.close(child)
        status = os.waitpid(pid, 0)[1]
        try:
            self.poll.unregister(caller)
            caller.send(STATUS.pack(status))
        except (KeyError, OSError):  # it was killed
            pass
        caller.close()


def end(pid: int) -> None:
    import signal

    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def receive(caller: socket.socket) -> tuple[dict | None, list[int]]:
    data, fds, _, _ = socket.recv_fds(caller, 1 << 20, 3)
    while data and not data.endswith(b"\n"):
        more = caller.recv(1 << 20)
        data = data + more if more else b""
    return json.loads(data) if data else None, fds


def run_here(wanted: dict) -> None:
    """Runs like `python3 SCRIPT` or `python3 -c CODE` with this environment, up to the
    interpreter's teardown."""
    import atexit
    import traceback
    import types

    os.chdir(wanted["directory"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = wanted["arguments"]
    sys.orig_argv[1:] = sys.argv
    main = types.ModuleType("__main__")
    if sys.argv[0] == "-c":
        script, text, folder = "<string>", sys.argv.pop(1).encode(), ""
    else:
        script = main.__file__ = sys.argv[0]
        text, folder = None, os.path.dirname(os.path.abspath(script))
    before = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    sys.path[0:1] = [folder, *before]
    sys.modules["__main__"] = main
    code: object = 1
    try:
        if text is None:
            with open(script, "rb") as file:
                text = file.read()
        exec(compile(text, script, "exec"), main.__dict__)
        code = 0
    except SystemExit as leave:
        code = 0 if leave.code is None else leave.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code) & 255)  # the process ends anyway: tearing it down takes a third of a second


def serve(listener: int, parent: int) -> None:
    import gc
    import torch  # noqa: F401

    sys.dont_write_bytecode = True
    gc.freeze()  # children's collections skip torch's objects, which would copy their pages
    Server(socket.socket(fileno=listener), parent).run()
    os._exit(0)


# ---- callers ----


def start(name: str, parent: int) -> None:
    """Starts a process that answers at `name` until `parent` ends."""
    import subprocess

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen(64)
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        watch = os.pidfd_open(parent)
        if (
            os.fork() == 0
        ):  # orphaned on purpose: CTest kills the children of a script that takes too long
            subprocess.Popen(
                [sys.executable, __file__, "--serve", str(listener.fileno()), str(watch)],
                pass_fds=(listener.fileno(), watch),
                start_new_session=True,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            os._exit(0)
        os.wait()
        os.close(watch)


def reach(name: str) -> socket.socket | None:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect("\0" + name)
    except OSError:
        server.close()
        return None
    return server


def connect(name: str, parent: int) -> socket.socket | None:
    server = reach(name)
    if server is not None:
        return server
    with open(
        __file__, encoding="utf-8"
    ) as lock:  # several scripts can come at once: one of them starts it
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = reach(name)
        if server is None:
            try:
                start(name, parent)
            except OSError:  # the name is taken by a process that does not answer
                return None
            server = reach(name)
    return server


def ask(arguments: list[str]) -> int | None:
    """The script's exit status, or None if it has not run."""
    parent = os.getppid()
    if parent == 1:  # the caller has ended: the process would not know when to end
        return None
    name = os.environ.get(TOLD)
    if (
        name is not None
    ):  # a process that ends with this script's parent would take other scripts with it
        server = reach(name)
    else:
        name = os.environ[TOLD] = NAME.format(os.getuid(), parent)
        server = connect(name, parent)
    if server is None:
        return None
    wanted = {"arguments": arguments, "directory": os.getcwd(), "environment": dict(os.environ)}
    try:
        socket.send_fds(server, [json.dumps(wanted).encode() + b"\n"], [0, 1, 2])
        if server.recv(1) != b"+":
            return None
    except OSError:
        return None
    told = server.recv(STATUS.size)
    if len(told) != STATUS.size:
        print("with_torch.py: the process that runs the scripts has ended", file=sys.stderr)
        return 1
    return os.waitstatus_to_exitcode(STATUS.unpack(told)[0])


def main() -> None:
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]), int(sys.argv[3]))
        return
    code = ask(sys.argv[1:])
    if code is None:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
