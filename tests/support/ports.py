"""A port for a server that has to be told its port."""
import itertools
import os
import socket

# Below the ephemeral range: no process gets one between the check and the server's start.
FIRST, COUNT = 10000, 10000
_numbers = itertools.count(os.getpid() * 16)  # each process tries its own numbers first


def free_port():
    for number in itertools.islice(_numbers, COUNT):
        port = FIRST + number % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port of {FIRST} to {FIRST + COUNT - 1} is free")
