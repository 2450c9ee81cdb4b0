"""Programs on a terminal of a given width: what a person would see there."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time


def on_terminal(
    command,
    columns=80,
    env=None,
    seconds=60,
    stream="stdout",
    interrupt=None,
    strike=lambda program: program.send_signal(signal.SIGINT),
):
    """Runs the command with `stream` on a pseudo-terminal of `columns`; returns its exit status and
    everything it wrote there. It is interrupted once the bytes `interrupt` are seen."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {k: v for k, v in (env or os.environ).items() if k not in ("COLUMNS", "NO_COLOR")}
    variables.update({k: v for k, v in (env or {}).items() if k in ("COLUMNS", "NO_COLOR")})
    variables.setdefault("TERM", "xterm")
    program = subprocess.Popen(
        [*map(str, command)],
        stdin=subprocess.DEVNULL,
        env=variables,
        **({"stdout": subprocess.DEVNULL} | {stream: slave})
    )
    os.close(slave)
    raw, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(master, 65536)
        except OSError:  # EIO: the last process on the other end has gone
            piece = b""
        if not piece:
            break
        raw += piece
        if interrupt is not None and interrupt in raw:
            strike(program)
            interrupt = None
    os.close(master)
    return program.wait(timeout=seconds), raw.decode().replace("\r\n", "\n")
