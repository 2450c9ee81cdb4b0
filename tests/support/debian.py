"""Debian's packages as this machine's apt gets them, without installing any; used to build what
tests run in."""
import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile


class Missing(Exception):
    """The error message for the user."""


def cache_folder():
    """Where results that take long to build are kept between checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "helios"


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def logged(log, *command, env=None, cwd=None):
    done = subprocess.run(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=env,
        cwd=cwd,
        check=False,
    )
    if done.returncode != 0:
        log.flush()
        tail = "\n".join(pathlib.Path(log.name).read_text(errors="replace").splitlines()[-15:])
        raise Missing(f"{command[0]} failed ({done.returncode}); the end of {log.name}:\n{tail}")


def mirror():
    """(URI, codename) of Debian's main suite as apt knows it here."""
    rows = output(
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI) $(CODENAME) $(ORIGIN) $(LABEL) $(COMPONENT)",
        "Created-By: Packages",
    )
    for row in rows.splitlines():
        uri, codename, *rest = row.split()
        if rest == ["Debian", "Debian", "main"] and "-" not in codename:
            return uri, codename
    raise Missing(
        "apt knows no Debian suite here (apt-get indextargets); add Debian's main to its sources"
        " and run apt-get update"
    )


def apt_environment():
    """debootstrap downloads with wget: it uses the proxy that apt uses."""
    env = dict(os.environ)
    proxy = output(
        "sh", "-c", "eval $(apt-config shell P Acquire::http::Proxy); echo \"${P:-}\""
    ).strip()
    if proxy:
        env.setdefault("http_proxy", proxy)
    return env


def versions(packages):
    """package=candidate, one line each. apt reads all its lists for this, a second of CPU time: the
    result is cached while the lists stay the same."""
    lists = str(
        [
            os.stat(p).st_mtime_ns
            for p in ("/var/lib/apt/lists", "/var/lib/dpkg/status")
            if os.path.exists(p)
        ]
    )
    answer = (
        cache_folder() / f"candidates-{hashlib.sha256(str(packages).encode()).hexdigest()[:16]}"
    )
    try:
        stamp, _, text = answer.read_text(encoding="utf-8").partition("\n")
        if stamp == lists:
            return text
    except FileNotFoundError:
        pass
    text = _candidates(packages)
    answer.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=answer.parent, delete=False, encoding="utf-8") as new:
        new.write(f"{lists}\n{text}")
    os.replace(new.name, answer)
    return text


def _candidates(packages):
    found, name = {}, None
    for line in output("apt-cache", "policy", *packages).splitlines():
        if not line.startswith(" "):
            name = line.rstrip(":")
        elif line.strip().startswith("Candidate:"):
            found[name] = line.split()[1]
    lacking = [p for p in packages if found.get(p, "(none)") == "(none)"]
    if lacking:
        raise Missing(f"apt has no candidate for {' '.join(lacking)}; run apt-get update")
    return "".join(f"{p}={found[p]}\n" for p in packages)


@contextlib.contextmanager
def alone(cache):
    """One process at a time per cache."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_making(cache):
    """Whether a process is building something in this cache."""
    try:
        with open(cache / "lock", "r", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def remove(folder):
    if os.geteuid() != 0:  # Go writes its cache read-only in places
        subprocess.run(["chmod", "-R", "u+w", folder], check=False)
    shutil.rmtree(folder)


def kept(final, make, replaces=None):
    """The folder `final`. If it is missing, make(work, log) builds it and returns the folder in
    `work` that becomes it.

    One is built at a time in a cache. What a failed build left stays with its log until the next
    try. Siblings that match the glob `replaces` are older builds and are removed."""
    cache, prefix = final.parent, f"making-{final.name.partition('-')[0]}-"
    with alone(cache):
        for left in cache.glob(f"{prefix}*"):
            remove(left)
        if not final.exists():
            work = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=cache))
            work.chmod(0o755)
            try:
                with open(work / "log", "w", encoding="utf-8") as log:
                    make(work, log).rename(final)
            except BaseException:
                print(f"what was made so far lies in {work}", flush=True)
                raise
            remove(work)
            print(f"it is kept in {final}", flush=True)
            for old in cache.glob(replaces) if replaces else ():
                if old != final:
                    remove(old)
    return final


class Fetcher:
    """apt with lists of its own, sources included: the machine's configuration is not changed, and
    root is not needed.

    With another architecture it takes no package for installed."""

    def __init__(self, work, log, architecture=None):
        self.work, self.log = work, log
        uri, codename = mirror()
        for part in ("lists/partial", "cache/archives/partial"):
            (work / "apt" / part).mkdir(parents=True)
        signed = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
        (work / "apt" / "sources.list").write_text(
            f"deb {signed} {uri} {codename} main\ndeb-src {signed} {uri} {codename} main\n"
        )
        self.options = [
            f"-oDir::Etc::SourceList={work}/apt/sources.list",
            "-oDir::Etc::SourceParts=-",
            f"-oDir::State::Lists={work}/apt/lists",
            f"-oDir::Cache={work}/apt/cache",
            "-oAPT::Sandbox::User=",
            "-oAcquire::Languages=none",
            "-q",
        ]
        if architecture is not None:
            (work / "apt" / "status").touch()
            self.options += [
                f"-oAPT::Architecture={architecture}",
                f"-oAPT::Architectures::={architecture}",
                f"-oDir::State::status={work}/apt/status",
            ]
        self._get("update")

    def _get(self, *words):
        logged(self.log, "apt-get", *self.options, *words, cwd=self.work)

    def unpack(self, package, into):
        debs = self.work / "debs" / package
        debs.mkdir(parents=True)
        logged(self.log, "apt-get", *self.options, "download", package, cwd=debs)
        logged(self.log, "dpkg", "-x", next(debs.glob("*.deb")), into)

    def unpack_all(self, packages, into):
        """With all dependencies."""
        self._get("install", "--yes", "--no-install-recommends", "--download-only", *packages)
        for deb in sorted((self.work / "apt/cache/archives").glob("*.deb")):
            logged(self.log, "dpkg", "-x", deb, into)

    def source(self, package, into):
        self._get("source", "--download-only", package)
        logged(
            self.log,
            "dpkg-source",
            "--no-check",
            "-x",
            next(self.work.glob(f"{package}_*.dsc")),
            into,
        )
