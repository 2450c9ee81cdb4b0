"""An S3 server for tests: Debian's Swift with its s3api, in one process, under one directory.

`swift_s3.py DIR [PORT]` serves in the foreground until it is killed or its parent dies;
DIR/ready.json then has endpoint, bucket, access_key and secret_key. Exit 77 with the reason where
Swift is not installed. Signatures and payload checksums are verified; nothing outside DIR is read
or written.
"""
import ctypes
import json
import os
import pathlib
import signal
import sys
import time

KEY, SECRET, BUCKET = "test:tester", "testing", "helios-test"
SKIP = 77


def skip(why):
    print(f"swift_s3: {why}", file=sys.stderr)
    sys.exit(SKIP)


try:
    import eventlet

    eventlet.monkey_patch()
    import eventlet.wsgi
    import swift.common.utils
except ImportError as e:
    skip(f"{e}; install swift-proxy, swift-account, swift-container and swift-object")

STORAGE = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {dir}
devices = {dir}/srv
mount_check = false
log_facility = LOG_LOCAL0
log_level = CRITICAL
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {dir}
log_level = CRITICAL
[pipeline:main]
pipeline = catch_errors cache s3api tempauth slo dlo proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
min_segment_size = 1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:slo]
use = egg:swift#slo
min_segment_size = 1
[filter:dlo]
use = egg:swift#dlo
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


def check_xattr(root):
    probe = root / "probe"
    probe.touch()
    try:
        os.setxattr(probe, "user.helios", b"1")
    except OSError as e:
        skip(f"{root}: Swift keeps its metadata in extended attributes: {e}")
    probe.unlink()


def make_rings(root, ports):
    from swift.common.ring import RingBuilder

    for kind, port in ports.items():
        b = RingBuilder(4, 1, 1)
        b.add_dev(
            {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1}
        )
        b.rebalance()
        b.get_ring().save(str(root / f"{kind}.ring.gz"))


def make_bucket(port):
    """The archive does not create buckets. Signed here, literally as AWS describes version 4."""
    import hashlib
    import hmac
    import http.client

    def sign(key, text):
        return hmac.new(key, text.encode(), hashlib.sha256).digest()

    host, now = f"127.0.0.1:{port}", time.gmtime()
    stamp, day = time.strftime("%Y%m%dT%H%M%SZ", now), time.strftime("%Y%m%d", now)
    empty, names = hashlib.sha256(b"").hexdigest(), "host;x-amz-content-sha256;x-amz-date"
    request = (
        f"PUT\n/{BUCKET}\n\nhost:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{stamp}\n\n"
        f"{names}\n{empty}"
    )
    scope = f"{day}/us-east-1/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = ("AWS4" + SECRET).encode()
    for part in (day, "us-east-1", "s3", "aws4_request"):
        key = sign(key, part)
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    c.request(
        "PUT",
        f"/{BUCKET}",
        headers={
            "x-amz-content-sha256": empty,
            "x-amz-date": stamp,
            "Authorization": (
                f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names},"
                f" Signature={sign(key, text).hex()}"
            ),
        },
    )
    status = c.getresponse().status
    c.close()
    return status in (200, 409)


def main():
    # PR_SET_PDEATHSIG: a test that crashes leaves no server
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    root = pathlib.Path(sys.argv[1]).resolve()
    (root / "srv" / "d1").mkdir(parents=True, exist_ok=True)
    check_xattr(root)
    (root / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
    )
    swift.common.utils.set_swift_dir(str(root))
    # Reload: the module read the system's configuration when it was imported.
    swift.common.utils.HASH_PATH_PREFIX = swift.common.utils.HASH_PATH_SUFFIX = b""
    swift.common.utils.validate_configuration()
    from swift.common import wsgi

    sockets = {k: eventlet.listen(("127.0.0.1", 0)) for k in ("account", "container", "object")}
    sockets["proxy"] = eventlet.listen(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0))
    ports = {k: s.getsockname()[1] for k, s in sockets.items()}
    make_rings(root, {k: p for k, p in ports.items() if k != "proxy"})
    devnull = open(os.devnull, "w")
    for kind, sock in sockets.items():
        conf = root / f"{kind}-server.conf"
        conf.write_text(
            (PROXY if kind == "proxy" else STORAGE).format(kind=kind, port=ports[kind], dir=root)
        )
        app = wsgi.loadapp(str(conf), global_conf={"log_name": kind})
        eventlet.spawn(
            eventlet.wsgi.server,
            sock,
            app,
            log=devnull,
            protocol=wsgi.SwiftHttpProtocol,
            debug=False,
        )
    for _ in range(100):
        eventlet.sleep(0.05)
        try:
            if make_bucket(ports["proxy"]):
                break
        except OSError:
            pass
    else:
        print("swift_s3: the bucket could not be made", file=sys.stderr)
        sys.exit(1)
    ready = {
        "endpoint": f"http://127.0.0.1:{ports['proxy']}",
        "bucket": BUCKET,
        "access_key": KEY,
        "secret_key": SECRET,
        "pid": os.getpid(),
    }
    (root / "ready.tmp").write_text(json.dumps(ready))
    (root / "ready.tmp").rename(root / "ready.json")
    while True:
        eventlet.sleep(3600)


if __name__ == "__main__":
    main()
