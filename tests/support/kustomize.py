"""What `kubectl kustomize DIR` prints, as objects, for the part of kustomize that deploy/k8s uses.
Any other key is an error.

    for o in kustomize.render(ROOT / "deploy/k8s/overlays/cluster", namespace="h1"): ...
"""
from __future__ import annotations

import copy
import functools

import yaml

KINDS = {
    "kustomize.config.k8s.io/v1beta1": "Kustomization",
    "kustomize.config.k8s.io/v1alpha1": "Component",
}
OF_CLUSTER = ("Namespace", "ClusterRole", "ClusterRoleBinding")
KEYS = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "images"}


class Wrong(Exception):
    """The sentence that says what is wrong."""


def key_of(o):
    meta = o["metadata"]
    return o["apiVersion"], o["kind"], meta.get("namespace"), meta["name"]


def load(path):
    with open(path, encoding="utf-8") as text:
        return [o for o in yaml.safe_load_all(text) if o is not None]


def only(where, found, known):
    if set(found) - set(known):
        raise Wrong(
            f"{where}: {sorted(set(found) - set(known))} is none of what is rendered here:"
            f" {sorted(known)}"
        )


def matches(o, target):
    only("patch target", target, ("kind", "name"))
    return o["kind"] == target.get("kind", o["kind"]) and o["metadata"]["name"] == target.get(
        "name", o["metadata"]["name"]
    )


def patched(where, o, operations):
    """RFC 6902, `add` and `replace`."""
    for op in operations:
        only(where, op, ("op", "path", "value"))
        *steps, last = op["path"].lstrip("/").split("/")
        at = o
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        if op["op"] == "add" and isinstance(at, list):
            at.insert(len(at) if last == "-" else int(last), op["value"])
        elif op["op"] == "add" or (op["op"] == "replace" and (isinstance(at, list) or last in at)):
            at[int(last) if isinstance(at, list) else last] = op["value"]
        else:
            raise Wrong(f"{where}: {op['op']} {op['path']} does not apply")


def patch_all(where, objects, patches):
    for p in patches:
        only(where, p, ("target", "patch"))
        hit = [o for o in objects if matches(o, p["target"])]
        if not hit:
            raise Wrong(f"{where}: a patch has no target: {p['target']}")
        for o in hit:
            patched(where, o, yaml.safe_load(p["patch"]))


def move(objects, namespace):
    """Sets the namespace, also where accounts are named with theirs."""
    accounts = {o["metadata"]["name"] for o in objects if o["kind"] == "ServiceAccount"}
    for o in objects:
        if o["kind"] == "Namespace":
            o["metadata"]["name"] = namespace
        elif o["kind"] not in OF_CLUSTER:
            o["metadata"]["namespace"] = namespace
        for s in o.get("subjects") or ():
            if s["kind"] == "ServiceAccount" and s["name"] in accounts:
                s["namespace"] = namespace


def tag(where, objects, images):
    for image in images:
        only(where, image, ("name", "newName", "newTag"))
        for o in objects:
            for c in o.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
                name, _, version = c["image"].partition(":")
                if name == image["name"]:
                    c["image"] = f"{image.get('newName', name)}:{image.get('newTag', version)}"


def build(folder, objects):
    """`objects`: those that a component changes; returns them with its own."""
    path = folder / "kustomization.yaml"
    (k,) = load(path)
    only(path, k, KEYS)
    if KINDS.get(k["apiVersion"]) != k["kind"]:
        raise Wrong(f"{path}: {k['apiVersion']} has no {k['kind']}")
    for name in k.get("resources", ()):
        objects += build(folder / name, []) if (folder / name).is_dir() else load(folder / name)
    for name in k.get("components", ()):
        objects = build(folder / name, objects)
    if len({key_of(o) for o in objects}) != len(objects):
        raise Wrong(f"{path}: an object is there twice")
    patch_all(path, objects, k.get("patches", ()))
    if "namespace" in k:
        move(objects, k["namespace"])
    tag(path, objects, k.get("images", ()))
    return objects


@functools.lru_cache(maxsize=None)
def built(folder):
    return build(folder, [])


def render(folder, namespace=None):
    """The objects; `namespace`: as if the overlay had another `namespace:`."""
    objects = copy.deepcopy(built(folder.resolve()))
    if namespace is not None:
        move(objects, namespace)
    return objects
