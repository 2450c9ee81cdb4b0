"""Makes kube-apiserver and etcd for ./run test-k8s, from Debian's packages; cached by their
versions.

No Debian package has kube-apiserver, but the source package that kubernetes-client is made from
does, and Debian's Go compiles it: 5 to 10 minutes of two cores, once. Nothing is installed, and
root is not needed."""
import argparse
import functools
import hashlib
import os
import pathlib
import shlex
import shutil
import sys

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]

from support import debian
from support.debian import logged

# Kubernetes 1.20 and the newest Go of this Debian; for another release check the repairs made here.
GO, REFLECT, ETCD, BINARY = (
    "golang-1.19",
    "golang-github-modern-go-reflect2-dev",
    "etcd-server",
    "kubernetes-client",
)
RECIPE = 1  # version of the result; a change rebuilds it
KUBE = "k8s.io/kubernetes"
TOOLS = {"apt-get": "apt", "dpkg": "dpkg", "dpkg-source": "dpkg-dev", "xz": "xz-utils"}
# Packages whose types have an OpenAPI text; code-generator and the sample are not of the server.
TAGGED = (
    "grep -rl --include='*.go' '+k8s:openapi-gen=' {where} | grep -vE"
    " '_test.go|k8s.io/(code-generator|sample-apiserver)/' | xargs -n1 dirname | sort -u"
)


def say(text):
    print(f"test-k8s: {text}", flush=True)


@functools.lru_cache(maxsize=None)  # each call of apt takes half a second
def cache_key():
    text = debian.versions([BINARY, f"{GO}-go", REFLECT, ETCD])
    digest = hashlib.sha256(f"{RECIPE} {text}".encode()).hexdigest()[:8]
    version = text.splitlines()[0].partition("=")[2].replace(":", "_").replace("~", "-")
    return f"kube-apiserver-{version}-{os.uname().machine}-{digest}", text


def prepare_source(fetch, work):
    """The source, patched so that it compiles and does not crash; returns its folder inside a
    GOPATH."""
    # Since Go 1.17 module mode refuses its vendor folder; GOPATH mode does not check.
    tree = work / "gopath/src" / KUBE
    tree.parent.mkdir(parents=True)
    fetch.source("kubernetes", tree)
    fetch.unpack(REFLECT, work / "reflect2")
    # Vendored reflect2 1.0.1 crashes programs of Go 1.18 and later at the first custom resource.
    vendored = tree / "vendor/github.com/modern-go/reflect2"
    for old in (*vendored.glob("*.go"), *vendored.glob("*.s")):
        old.unlink()
    newer = work / "reflect2/usr/share/gocode/src/github.com/modern-go/reflect2"
    for new in (*newer.glob("*.go"), *newer.glob("*.s")):
        if not new.name.endswith("_test.go"):
            shutil.copy(new, vendored / new.name)
    return tree


def go_environment(fetch, work):
    for part in ("go", "src"):
        fetch.unpack(f"{GO}-{part}", work / "go")
    root = work / "go/usr/lib/go-1.19"
    return {
        "PATH": f"{root}/bin:{os.environ['PATH']}",
        "HOME": str(work),
        "GOROOT": str(root),
        "GO111MODULE": "off",
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / "gocache"),
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }


def generate_openapi(tree, work, env, log):
    """The one generated file that the tarball lacks."""
    logged(
        log,
        "go",
        "build",
        "-o",
        work / "openapi-gen",
        f"{KUBE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen",
        env=env,
        cwd=tree,
    )
    own = debian.output(
        "sh", "-c", f"cd {shlex.quote(str(tree))} && " + TAGGED.format(where="pkg cmd")
    ).split()
    staging = debian.output(
        "sh", "-c", f"cd {shlex.quote(str(tree))}/staging/src && " + TAGGED.format(where="k8s.io")
    ).split()
    inputs = [f"{KUBE}/vendor/{p}" for p in staging] + [f"{KUBE}/{p}" for p in own]
    logged(
        log,
        work / "openapi-gen",
        "--logtostderr",
        "-i",
        ",".join(inputs),
        "-p",
        f"{KUBE}/pkg/generated/openapi",
        "-O",
        "zz_generated.openapi",
        "-h",
        "hack/boilerplate/boilerplate.generatego.txt",
        "-r",
        work / "violations",
        "-o",
        work / "gopath/src",
        env=env,
        cwd=tree,
    )


def compile_server(tree, work, version, out, env, log):
    release = version.rpartition("really")[2].partition("-")[0]
    names = {
        "gitVersion": f"v{release}",
        "gitMajor": release.split(".")[0],
        "gitMinor": release.split(".")[1],
        "gitTreeState": "clean",
    }
    flags = "-s -w" + "".join(
        f" -X {KUBE}/vendor/k8s.io/{p}.{k}={v}"
        for p in ("component-base/version", "client-go/pkg/version")
        for k, v in names.items()
    )
    jobs = min(os.cpu_count(), 4)  # each takes up to 1.3 GB
    logged(
        log,
        "nice",
        "go",
        "build",
        "-p",
        str(jobs),
        "-ldflags",
        flags,
        "-o",
        out,
        f"{KUBE}/cmd/kube-apiserver",
        env=env,
        cwd=tree,
    )


def build(text, work, log):
    version = text.splitlines()[0].partition("=")[2]
    made = work / "made"
    made.mkdir()
    say(f"fetching kubernetes {version} and Debian's Go")
    fetch = debian.Fetcher(work, log)
    fetch.unpack(ETCD, work / "etcd")
    shutil.copy(work / "etcd/usr/bin/etcd", made / "etcd")
    tree = prepare_source(fetch, work)
    env = go_environment(fetch, work)
    say(f"compiling kube-apiserver (5 to 10 minutes, once); {log.name}")
    generate_openapi(tree, work, env, log)
    compile_server(tree, work, version, made / "kube-apiserver", env, log)
    (made / "packages").write_text(text)
    return made


def folder(make=True):
    """Directory with the programs kube-apiserver and etcd; None if they would have to be built and
    must not be."""
    try:
        key, text = cache_key()
    except debian.Missing:
        if make:
            raise
        return None
    final = debian.cache_folder() / key
    if final.exists() or not make:
        return final if final.exists() else None
    lacking = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if lacking:
        raise debian.Missing(
            f"these packages are missing: {' '.join(lacking)}; ./run deps installs them"
        )
    return debian.kept(final, functools.partial(build, text), replaces="kube-apiserver-*")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--made", action="store_true", help="make nothing; exit with 0 when they are there"
    )
    if parser.parse_args().made:
        sys.exit(0 if folder(make=False) else 1)
    try:
        print(folder())
    except debian.Missing as why:
        sys.exit(f"test-k8s: {why}")


if __name__ == "__main__":
    main()
