"""A port for a server that is told its own."""
import itertools
import os
import socket

FIRST, COUNT = 10000, 10000  # below those that the kernel gives out: nobody gets one between our look and the server's
_numbers = itertools.count(os.getpid() * 16)  # each process looks at its own first


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
